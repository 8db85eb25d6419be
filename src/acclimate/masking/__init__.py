"""Which tokens are hidden from the model."""

from acclimate.masking.random import Masking, RandomMasking

__all__ = ["Masking", "RandomMasking"]
