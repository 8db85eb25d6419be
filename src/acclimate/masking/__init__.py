"""Which tokens are hidden from the model."""

from acclimate.masking.random import Masking, RandomMasking
from acclimate.masking.spans import NGramAlone, NGrams, Rewriting, WithoutNGram

__all__ = ["Masking", "NGramAlone", "NGrams", "RandomMasking", "Rewriting", "WithoutNGram"]
