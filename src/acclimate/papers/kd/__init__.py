"""Language modelling regularized by distillation from the base model (MLM+KD of Ke et al., EMNLP 2022)."""
