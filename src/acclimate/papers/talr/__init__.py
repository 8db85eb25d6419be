"""Language modelling that weights each token by its likelihood (TALR, Lin et al., 2025)."""
