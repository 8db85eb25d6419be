"""Masking strategies: which tokens the model has to predict, and what replaces them."""

from acclimate.models.kinds import IGNORE_INDEX
from acclimate.parts.masking.base import (
    MASK_RATE,
    Masking,
    RandomMasking,
    Strategy,
    Vocabulary,
    get,
    lookup,
    names,
    register,
    resolve,
)
from acclimate.parts.masking.rewriting import (
    DrawExamples,
    Drawing,
    DrawRelations,
    DrawTriplets,
    ExtractNGram,
    MaskNGram,
    NGramSampler,
    Rewriting,
)
from acclimate.parts.masking.wrappers import RandomSameCount

__all__ = [
    "IGNORE_INDEX",
    "MASK_RATE",
    "DrawExamples",
    "DrawRelations",
    "DrawTriplets",
    "Drawing",
    "ExtractNGram",
    "MaskNGram",
    "Masking",
    "NGramSampler",
    "RandomMasking",
    "RandomSameCount",
    "Rewriting",
    "Strategy",
    "Vocabulary",
    "get",
    "lookup",
    "names",
    "register",
    "resolve",
]
