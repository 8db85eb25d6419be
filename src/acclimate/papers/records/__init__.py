"""Records of a table as text, packed with related ones (EcomGPT-CT, Ma et al., 2023)."""
