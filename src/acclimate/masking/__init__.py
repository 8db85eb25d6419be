"""Which tokens are hidden from the model."""

from acclimate.masking.base import IGNORED, MASK_RATE, Masking, Strategy, Vocabulary
from acclimate.masking.random import RandomMasking
from acclimate.masking.registry import file_parameters, get, identify, lookup, names, register, resolve
from acclimate.masking.same_count import RandomSameCount
from acclimate.masking.spans import NGramAlone, NGrams, Rewriting, WithoutNGram

__all__ = [
    "IGNORED",
    "MASK_RATE",
    "Masking",
    "NGramAlone",
    "NGrams",
    "RandomMasking",
    "RandomSameCount",
    "Rewriting",
    "Strategy",
    "Vocabulary",
    "WithoutNGram",
    "file_parameters",
    "get",
    "identify",
    "lookup",
    "names",
    "register",
    "resolve",
]
