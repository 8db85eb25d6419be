"""Trainings that are killed at a step, and the steps that a training makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from transformers import TrainerState

from acclimate.training.trainer import StepTrainer


@contextmanager
def killed(at: int | Callable[[TrainerState], bool]) -> Iterator[None]:
    """Kill the training in its body before a step is made, and expect that; ``at`` is its number, or tells it."""
    is_it = at if callable(at) else lambda state: state.global_step == at

    def kill(state: TrainerState) -> None:
        if is_it(state):
            raise KeyboardInterrupt

    with _before_steps(kill), pytest.raises(KeyboardInterrupt):
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the numbers of the steps that the training in its body makes."""
    steps: list[int] = []
    with _before_steps(lambda state: steps.append(state.global_step)):
        yield steps


@contextmanager
def _before_steps(look: Callable[[TrainerState], None]) -> Iterator[None]:
    step = StepTrainer.training_step

    def looking(self, *args, **kwargs):
        look(self.state)
        return step(self, *args, **kwargs)

    with patch.object(StepTrainer, "training_step", looking):
        yield
