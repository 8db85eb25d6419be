"""Language modelling with logit swap self-distillation (Mix-CPT, Jiang et al., ICLR 2025)."""
