"""The options of fine-tuning, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.errors import UserError, unknown_name_error
from acclimate.training.options import check_seed


@dataclass(frozen=True)
class FinetuneOptions:
    """The keywords of :func:`acclimate.tasks.finetune`, which documents them.

    Each kind of task reads what it needs.
    """

    seed: int
    epochs: int
    learning_rate: float
    batch_size: int
    max_length: int
    few_shot: int | None
    select: str
    metric: str
    """Never None: by default the primary metric of the task."""
    warmup: float
    weight_decay: float
    precision: str
    progress: bool
    negative: tuple[str, ...]
    confidence_penalty: float = 0.0

    def check(self, task: str, metrics: Sequence[str], has_dev: bool) -> None:
        """Check the options.

        Args:
            task: Name of the task.
            metrics: The metrics of the task.
            has_dev: Whether the task has a dev split.

        Raises:
            UserError: If an option is invalid.
        """
        if self.select not in ("last", "dev"):
            raise unknown_name_error("choice of weights", self.select, ("last", "dev"))
        if self.metric not in metrics:
            raise unknown_name_error("metric", self.metric, metrics)
        if self.select == "dev" and not has_dev:
            raise UserError(f"select='dev' needs a dev split, and the task '{task}' has none; use select='last'.")
        for name in ("epochs", "batch_size"):
            number = getattr(self, name)
            if not (1 <= number < math.inf and number == int(number)):
                raise UserError(f"{name}={number} must be a whole number of at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"learning_rate={self.learning_rate} must be above 0.")
        check_seed(self.seed)
        for name in ("confidence_penalty", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name}={getattr(self, name)} must be 0 or more.")
        if not 0 <= self.warmup <= 1:
            raise UserError(f"warmup={self.warmup} must lie between 0 and 1.")


def as_label_tuple(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return labels that were given as one name, several or None."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)
