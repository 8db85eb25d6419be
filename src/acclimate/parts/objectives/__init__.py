"""Loss terms over views of a batch."""

from acclimate.parts.objectives.base import (
    Batch,
    BatchObjective,
    Gates,
    LanguageModelling,
    Objective,
    Outputs,
    PoolingHead,
    View,
    ViewInput,
    mean_pool,
)
from acclimate.parts.objectives.contrast import GeneralKnowledgeContrast, TextContrast, contrastive_loss
from acclimate.parts.objectives.distillation import (
    Distillation,
)
from acclimate.parts.objectives.supervised import (
    ClassificationHeads,
    DrawnClassification,
)

__all__ = [
    "Batch",
    "BatchObjective",
    "ClassificationHeads",
    "Distillation",
    "DrawnClassification",
    "Gates",
    "GeneralKnowledgeContrast",
    "LanguageModelling",
    "Objective",
    "Outputs",
    "PoolingHead",
    "TextContrast",
    "View",
    "ViewInput",
    "contrastive_loss",
    "mean_pool",
]
