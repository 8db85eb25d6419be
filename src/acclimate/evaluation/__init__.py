"""Metrics, statistics, calibration and language-model loss."""

from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.metrics import classification_metrics
from acclimate.evaluation.qa import qa_metrics

__all__ = ["classification_metrics", "language_model_loss", "qa_metrics"]
