"""MLM+TaCL: token-level contrast between the model and the frozen base model (baseline of Ke et al., EMNLP 2022)."""
