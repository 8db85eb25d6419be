"""The stages before distillation: a teacher, and a student, that know the task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from acclimate.backbone.checkpoints import UNREADABLE, trusted, why
from acclimate.errors import UserError
from acclimate.tasks.data import Task
from acclimate.tasks.finetune import finetune


def knows_task(path: str | Path, task: Task) -> bool:
    """Say whether a checkpoint already is a classifier of a task's labels, in their order.

    Args:
        path: A model folder, or a name on the hub.
        task: The task.

    Raises:
        UserError: If there is no model.
    """
    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=trusted())
    except UNREADABLE as error:
        raise UserError(f"No model could be read from '{path}': {why(error)}") from error
    names = getattr(config, "id2label", None) or {}
    return (
        any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
        and [names.get(place) for place in range(len(names))] == task.labels
        and (config.problem_type == "multi_label_classification") == task.multi_label
    )


def learnt(path: str | Path, task: Task, folder: Path, **options: Any) -> Path | str:
    """Return a checkpoint that knows the task: this one if it does, else this one fine-tuned.

    Args:
        path: A model folder, or a name on the hub.
        task: The task.
        folder: Where the fine-tuned model goes.
        options: Of :func:`acclimate.tasks.finetune`.

    Raises:
        UserError: As fine-tuning does.
    """
    if knows_task(path, task):
        return path
    finetune(path, task, out=folder, **options)
    return folder


class Stages:
    """Measures how long each stage takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure the block as the stage ``name``."""
        started = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started, 3)
