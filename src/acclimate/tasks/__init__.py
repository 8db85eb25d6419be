"""Labelled end tasks: reading them, fine-tuning a model on them, and measuring it."""

from acclimate.tasks.classification import FinetuneResult, finetune
from acclimate.tasks.data import Example, Task, load_task
from acclimate.tasks.repartition import repartition

__all__ = ["Example", "FinetuneResult", "Task", "finetune", "load_task", "repartition"]
