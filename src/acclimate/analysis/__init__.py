"""Looking inside: what a model holds important, and whether that says more than chance would."""

from acclimate.analysis.importance import ImportanceResult, inspect_importance
from acclimate.analysis.similarity import random_similarity

__all__ = ["ImportanceResult", "inspect_importance", "random_similarity"]
