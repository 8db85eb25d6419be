"""Selective masking: find the tokens that matter to a task, learn to predict them, and mask them in domain text.

Gu et al., "Train No Evil: Selective Masking for Task-Guided Pre-Training", EMNLP 2020.
"""

from acclimate.methods.selective.annotation import Annotations, annotate
from acclimate.methods.selective.importance_rule import AnnotatedUnit, Confidence, Unit, annotate_units
from acclimate.methods.selective.method import Selective
from acclimate.methods.selective.options import AnnotationOptions, TokenTrainingOptions, annotation_options

__all__ = [
    "AnnotatedUnit",
    "AnnotationOptions",
    "Annotations",
    "Confidence",
    "Selective",
    "TokenTrainingOptions",
    "Unit",
    "annotate",
    "annotate_units",
    "annotation_options",
]
