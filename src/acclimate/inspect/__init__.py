"""Looking inside: what a model holds important, and whether that says more than chance; what is masked in a text."""

from acclimate.inspect.embeddings import EmbeddingsResult, inspect_embeddings
from acclimate.inspect.importance import ImportanceResult, inspect_importance
from acclimate.inspect.masks import inspect_masks
from acclimate.inspect.similarity import random_similarity

__all__ = [
    "EmbeddingsResult",
    "ImportanceResult",
    "inspect_embeddings",
    "inspect_importance",
    "inspect_masks",
    "random_similarity",
]
