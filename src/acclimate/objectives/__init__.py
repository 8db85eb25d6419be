"""Loss terms over views of a batch."""

from acclimate.objectives.base import (
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
from acclimate.objectives.contrast import GeneralKnowledgeContrast, TextContrast, contrastive_loss
from acclimate.objectives.distillation import Distillation, TokenDistillation
from acclimate.objectives.embedding import EmbeddingRegularizer
from acclimate.objectives.infoword import SpanContrast
from acclimate.objectives.reconstruction import SentenceReconstruction
from acclimate.objectives.tacl import TokenAwareContrast
from acclimate.objectives.taco import ContextContrast

__all__ = [
    "Batch",
    "BatchObjective",
    "ContextContrast",
    "Distillation",
    "EmbeddingRegularizer",
    "Gates",
    "GeneralKnowledgeContrast",
    "LanguageModelling",
    "Objective",
    "Outputs",
    "PoolingHead",
    "SentenceReconstruction",
    "SpanContrast",
    "TextContrast",
    "TokenAwareContrast",
    "TokenDistillation",
    "View",
    "ViewInput",
    "contrastive_loss",
    "mean_pool",
]
