"""Inspection and diagnostics of models and corpora: importance, embeddings, masking."""

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
