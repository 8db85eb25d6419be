"""Ensemble of the base model and the adapted model (ablation of Ke et al., EMNLP 2022, Table 3)."""
