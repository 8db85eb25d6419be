"""Loss terms over views of a batch."""

from acclimate.objectives.base import Batch, BatchObjective, Gates, Objective, Outputs, Reading, View, mean_pool
from acclimate.objectives.contrast import GeneralContrast, contrast
from acclimate.objectives.distillation import Distillation
from acclimate.objectives.embedding import EmbeddingRegulariser
from acclimate.objectives.infoword import SpanContrast
from acclimate.objectives.mlm import MaskedLM
from acclimate.objectives.simcse import TextContrast
from acclimate.objectives.tacl import TokenAwareContrast
from acclimate.objectives.taco import ContextContrast
from acclimate.objectives.token_distillation import TokenDistillation

__all__ = [
    "Batch",
    "BatchObjective",
    "ContextContrast",
    "Distillation",
    "EmbeddingRegulariser",
    "Gates",
    "GeneralContrast",
    "MaskedLM",
    "Objective",
    "Outputs",
    "Reading",
    "SpanContrast",
    "TextContrast",
    "TokenAwareContrast",
    "TokenDistillation",
    "View",
    "contrast",
    "mean_pool",
]
