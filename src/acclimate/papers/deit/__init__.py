"""MLM+AdaptedDeiT: masked language modelling with a distillation token (baseline of Ke et al., EMNLP 2022)."""
