"""Metrics, significance, forgetting."""

from acclimate.evaluation.lm_loss import masked_lm_loss
from acclimate.evaluation.metrics import classification_metrics

__all__ = ["classification_metrics", "masked_lm_loss"]
