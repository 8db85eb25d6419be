"""Documents studied with strategies that the model invents for each (Active Reading, Lin et al., 2025)."""
