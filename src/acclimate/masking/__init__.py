"""Masking strategies: which tokens the model has to predict, and what replaces them."""

from acclimate.masking.base import (
    IGNORE_INDEX,
    MASK_RATE,
    Masking,
    RandomMasking,
    Strategy,
    Vocabulary,
    file_parameters,
    get,
    identify,
    lookup,
    names,
    register,
    resolve,
)
from acclimate.masking.rewriting import (
    DeleteWords,
    DrawExamples,
    Drawing,
    DrawRelations,
    ExtractNGram,
    MaskNGram,
    NGramSampler,
    Rewriting,
)
from acclimate.masking.wrappers import RandomSameCount

__all__ = [
    "IGNORE_INDEX",
    "MASK_RATE",
    "DeleteWords",
    "DrawExamples",
    "DrawRelations",
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
    "file_parameters",
    "get",
    "identify",
    "lookup",
    "names",
    "register",
    "resolve",
]
