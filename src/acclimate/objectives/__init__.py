"""Loss terms over views of a batch."""

from acclimate.objectives.base import Batch, BatchObjective, Gates, Objective, Outputs, View, mean_pool
from acclimate.objectives.contrast import GeneralContrast, contrast
from acclimate.objectives.mlm import MaskedLM

__all__ = [
    "Batch",
    "BatchObjective",
    "Gates",
    "GeneralContrast",
    "MaskedLM",
    "Objective",
    "Outputs",
    "View",
    "contrast",
    "mean_pool",
]
