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
from acclimate.objectives.distillation import Distillation, LogitSwapDistillation, StateDistillation, TokenDistillation
from acclimate.objectives.embedding import EmbeddingRegularizer
from acclimate.objectives.infoword import SpanContrast
from acclimate.objectives.metadata import DocumentMetadata
from acclimate.objectives.reconstruction import SentenceReconstruction
from acclimate.objectives.retention import DomainLanguageModelling, StateRetention
from acclimate.objectives.supervised import (
    ClassificationHeads,
    DomainAdversary,
    DrawnClassification,
    NoiseConsistency,
    SimilarityDistillation,
    reversal_factor,
    reverse_gradient,
)
from acclimate.objectives.tacl import TokenAwareContrast
from acclimate.objectives.taco import ContextContrast
from acclimate.objectives.teachers import TeacherDistillation
from acclimate.objectives.token_weighting import WeightedLanguageModelling

__all__ = [
    "Batch",
    "BatchObjective",
    "ClassificationHeads",
    "ContextContrast",
    "Distillation",
    "DocumentMetadata",
    "DomainAdversary",
    "DomainLanguageModelling",
    "DrawnClassification",
    "EmbeddingRegularizer",
    "Gates",
    "GeneralKnowledgeContrast",
    "LanguageModelling",
    "LogitSwapDistillation",
    "NoiseConsistency",
    "Objective",
    "Outputs",
    "PoolingHead",
    "SentenceReconstruction",
    "SimilarityDistillation",
    "SpanContrast",
    "StateDistillation",
    "StateRetention",
    "TeacherDistillation",
    "TextContrast",
    "TokenAwareContrast",
    "TokenDistillation",
    "View",
    "ViewInput",
    "WeightedLanguageModelling",
    "contrastive_loss",
    "mean_pool",
    "reversal_factor",
    "reverse_gradient",
]
