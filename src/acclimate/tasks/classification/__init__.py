"""Classification of texts and pairs of texts."""

from acclimate.tasks.classification.classifier import Classification

__all__ = ["Classification"]
