"""Killing a training at a step, and recording the steps that a training takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from transformers import TrainerState

from acclimate.engine.trainer import StepTrainer


@contextmanager
def killed(at: int | Callable[[TrainerState], bool]) -> Iterator[None]:
    """Kill the training in the body before a step, and check that it was; ``at`` is a step number or a predicate."""
    is_it = at if callable(at) else lambda state: state.global_step == at

    def kill(state: TrainerState) -> None:
        if is_it(state):
            raise KeyboardInterrupt

    with before_steps(kill), pytest.raises(KeyboardInterrupt):
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the numbers of the steps that the training in the body takes."""
    steps: list[int] = []
    with before_steps(lambda state: steps.append(state.global_step)):
        yield steps


@contextmanager
def before_steps(look: Callable[[TrainerState], object]) -> Iterator[None]:
    """Call a function with the state of the training before every step."""
    step = StepTrainer.training_step

    def looking(self, *args, **kwargs):
        look(self.state)
        return step(self, *args, **kwargs)

    with patch.object(StepTrainer, "training_step", looking):
        yield
