"""Which tokens matter to a task: found on labelled texts, learnt, and looked for in the text of a domain.

Gu et al., "Train No Evil: Selective Masking for Task-Guided Pre-Training", EMNLP 2020.
"""

from acclimate.methods.selective.annotation import Annotations, annotate
from acclimate.methods.selective.importance_rule import AnnotatedUnit, Confidence, Unit, annotate_units
from acclimate.methods.selective.method import Selective
from acclimate.methods.selective.options import PRESETS, AnnotationOptions, TokenTrainingOptions, annotation_options

__all__ = [
    "PRESETS",
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
