"""The stages before distillation: a teacher, and a student, that know the task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acclimate.tasks.data import Task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.loading import knows_task


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
