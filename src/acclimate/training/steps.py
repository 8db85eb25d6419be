"""What a training is made of: the interfaces of its engine and data, its clock and its learning-rate schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from acclimate.training.distributed import ProcessGroup


class MicroBatch(Protocol):
    """What one forward pass reads."""

    @property
    def tokens(self) -> int:
        """Number of real tokens."""

    @property
    def texts(self) -> int:
        """Number of texts."""

    def to(self, device: torch.device) -> Any:
        """Return the micro-batch on ``device``."""


class StepEngine(Protocol):
    """Computes loss and gradients of one optimizer step."""

    group: ProcessGroup

    @property
    def model(self) -> PreTrainedModel:
        """The model in training."""

    def step(self, batches: Sequence[Any]) -> dict[str, Tensor]:
        """Add gradients; return each loss term by name, detached, and their weighted sum as ``"loss"``."""

    def is_finite(self, batches: Sequence[Any]) -> bool:
        """Return whether outputs and loss terms of these micro-batches are finite, read without dropout."""


class StepData(Protocol):
    """The micro-batches of every step: item ``i`` is the list of those that this process reads in step ``i``."""

    epoch_steps: int | None
    """Steps per epoch, where the end of an epoch matters to a callback or the log; None where it does not."""

    def __len__(self) -> int:
        """Return the number of steps."""

    def __getitem__(self, step: int) -> list[Any]:
        """Return the micro-batches of a step."""

    def indices(self, step: int) -> list[int]:
        """Return the texts that a step reads in all processes together, by number."""

    def alone(self, step: int, index: int) -> list[Any]:
        """Return the micro-batches of one text of a step, without padding."""

    def describe(self, index: int) -> str:
        """Return where a text comes from and its first words, for error messages."""


class Clock:
    """Seconds of training over all runs that it took, and the share of a time budget that is used up."""

    def __init__(self, budget: float | None = None, group: ProcessGroup | None = None) -> None:
        """Start at zero, with a budget in seconds or without one."""
        self.budget, self.earlier, self._start = budget, 0.0, time.monotonic()
        self._group, self._agreed = group or ProcessGroup(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self.earlier + time.monotonic() - self._start

    @property
    def spent(self) -> float:
        """Share of the budget that is used up; 0 without a budget.

        The learning rate follows it. With several processes it is therefore what the clock of the first one showed
        at the last :meth:`synchronize`.
        """
        if self.budget is None:
            return 0.0
        return self.seconds / self.budget if self._group.size == 1 else self._agreed

    def synchronize(self, device: torch.device) -> None:
        """Let all processes agree on the time."""
        if self.budget is not None and self._group.size > 1:
            self._agreed = self._group.broadcast_value(self.seconds / self.budget, device)


class ResumableCallback(TrainerCallback):
    """A callback whose state is part of every checkpoint."""

    def save(self, checkpoint: Path) -> None:
        """Write the state into the folder of a checkpoint."""
        raise NotImplementedError

    def load(self, checkpoint: Path) -> None:
        """Restore the state from the folder of a checkpoint."""
        raise NotImplementedError


def linear_schedule(steps: int, warmup: float, clock: Clock) -> Callable[[int], float]:
    """Return the factor of the learning rate: up to 1 over the ``warmup`` share of training, then linearly to 0.

    Under a time budget the progress is the share of time spent, if that is more than the share of steps.
    """

    def factor(step: int) -> float:
        done = max(step / steps, clock.spent)
        if done < warmup:
            # A rate of zero would waste the first step, so it gets the rate of its end.
            return min(1.0, max(done, 1 / steps) / warmup)
        return max(0.0, (1 - done) / max(1e-9, 1 - warmup))

    return factor


def log_interval(steps: int) -> int:
    """Return how many steps one line of the log averages: a fiftieth of the training, 50 at most."""
    return max(1, min(50, steps // 50))
