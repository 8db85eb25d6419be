"""Labelled end tasks: reading them, fine-tuning a model on them, and evaluating it."""

from acclimate.tasks.classification.data import Example, Task
from acclimate.tasks.distillation import DistillResult, distill
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds import LabelledTask, load_task
from acclimate.tasks.probing import probe
from acclimate.tasks.result import FinetuneResult
from acclimate.tasks.retrieval.generation import generate_queries
from acclimate.tasks.splits import repartition

__all__ = [
    "DistillResult",
    "Example",
    "FinetuneResult",
    "LabelledTask",
    "Task",
    "distill",
    "finetune",
    "generate_queries",
    "load_task",
    "probe",
    "repartition",
]
