"""Self-distillation for further pre-training (Lee et al., ICLR 2023)."""
