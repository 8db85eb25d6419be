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
    LogitSwapDistillation,
    StateDistillation,
    TokenDistillation,
)
from acclimate.parts.objectives.retention import DomainLanguageModelling, StateRetention
from acclimate.parts.objectives.supervised import (
    ClassificationHeads,
    DomainAdversary,
    DrawnClassification,
    NoiseConsistency,
    SimilarityDistillation,
    reversal_factor,
    reverse_gradient,
)

__all__ = [
    "Batch",
    "BatchObjective",
    "ClassificationHeads",
    "Distillation",
    "DomainAdversary",
    "DomainLanguageModelling",
    "DrawnClassification",
    "Gates",
    "GeneralKnowledgeContrast",
    "LanguageModelling",
    "LogitSwapDistillation",
    "NoiseConsistency",
    "Objective",
    "Outputs",
    "PoolingHead",
    "SimilarityDistillation",
    "StateDistillation",
    "StateRetention",
    "TextContrast",
    "TokenDistillation",
    "View",
    "ViewInput",
    "contrastive_loss",
    "mean_pool",
    "reversal_factor",
    "reverse_gradient",
]
