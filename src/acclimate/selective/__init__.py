"""Which tokens matter to a task: found on labelled texts, learnt, and looked for in the text of a domain.

Gu et al., "Train No Evil: Selective Masking for Task-Guided Pre-Training", EMNLP 2020.
"""

from acclimate.selective.annotating import Annotations, annotate
from acclimate.selective.annotation import Annotated, Confidence, Unit
from acclimate.selective.buffers import annotate_units
from acclimate.selective.options import PRESETS, AnnotationOptions, TokenTraining, annotation_options

__all__ = [
    "PRESETS",
    "Annotated",
    "AnnotationOptions",
    "Annotations",
    "Confidence",
    "TokenTraining",
    "Unit",
    "annotate",
    "annotate_units",
    "annotation_options",
]
