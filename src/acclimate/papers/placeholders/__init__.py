"""Text whose domain-specific words are placeholders (the de-domaining of AMD2G, Liu et al., 2024)."""
