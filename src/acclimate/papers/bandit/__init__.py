"""Weights from a bandit whose reward is the progress of the loss (EXP3, Auer et al., 2002)."""
