"""The stages before distillation: a teacher, and a student, that know the task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from transformers import set_seed

from acclimate.backbone.device import Precision, to_device
from acclimate.tasks.cached import train_once
from acclimate.tasks.classification import Classification, ClassificationLearner
from acclimate.tasks.data import Task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.loading import knows_task
from acclimate.tasks.options import Options


def learnt(
    path: str | Path,
    task: Task,
    options: Options,
    precision: Precision,
    device: torch.device,
    out: str | Path | None = None,
) -> tuple[ClassificationLearner, float, bool]:
    """Return a model that knows the task: this one if it does, else this one fine-tuned.

    What fine-tuning gives stays in the cache. So a distillation that was killed does not learn it again, and neither
    do others of the same teacher or student.

    Args:
        path: A model folder, or a name on the hub.
        task: The task.
        options: Of fine-tuning.
        precision: The resolved one.
        device: The default one.
        out: Where to save what was fine-tuned; then that folder is where it is found again.

    Returns:
        The model; the seconds that fine-tuning took, now or when it was done; and whether there was any.

    Raises:
        UserError: As fine-tuning does.
    """
    seconds, known = 0.0, knows_task(path, task)
    if not known and out is not None:
        seconds = taught_into(out, path, task, options, precision)
        path = out
    set_seed(options.seed)  # before the new weights are drawn
    learner = Classification().learner(path, task, options, device)
    to_device(learner.model)
    if not known and out is None:
        seconds = train_once(learner, learner.rows(task.train), options, precision)
    return learner, seconds, not known


def taught_into(out: str | Path, path: str | Path, task: Task, options: Options, precision: Precision) -> float:
    """Fine-tune a model into a folder, unless the folder holds just that, and return the seconds it took."""
    # The metric chooses between epochs, and here there is no choice: it may be one that only dev has.
    asked = {name: value for name, value in asdict(options).items() if name not in ("precision", "metric")}
    return finetune(path, task, out=out, precision=precision, **asked).seconds
