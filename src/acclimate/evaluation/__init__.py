"""Metrics, statistics, calibration and language-model loss."""

from acclimate.evaluation.entities import entity_metrics
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.evaluation.qa import qa_metrics
from acclimate.evaluation.regression import regression_metrics
from acclimate.evaluation.scoring import classification_metrics

__all__ = ["classification_metrics", "entity_metrics", "language_model_loss", "qa_metrics", "regression_metrics"]
