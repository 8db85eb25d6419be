"""Learning-rate schedules: the share of the peak rate at each point of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.base.bounds import Fraction
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.registry import build_dataclass, check_parameters, split_entry

DECAY = 0.2
"""Default share at the end of a training over which ``wsd`` falls, and from which checkpoints are averaged."""
SHAPES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 - np.cos(np.pi * left)) / 2,
    "constant": np.ones_like,
    "wsd": lambda left: left,
}
"""The rate by the share that is left: of the training after the warm-up, or of the decay of ``wsd``."""


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule.

    Attributes:
        shape: ``"linear"``, ``"cosine"``, ``"constant"`` or ``"wsd"`` (constant, then a linear fall).
        decay: Share at the end of the training over which ``wsd`` falls.
        warmup: Share of the training over which the rate rises.
    """

    shape: str = "linear"
    decay: Fraction = DECAY
    warmup: float = 0.1

    def __post_init__(self) -> None:
        if self.shape == "wsd" and self.decay + self.warmup > 1 + 1e-9:
            raise UserError(f"A warm-up of {self.warmup:g} and a decay of {self.decay:g} exceed the training.")

    def factor(self, done: Any, steps: int) -> Any:
        """Return the share of the peak rate.

        Args:
            done: Share of the training before a step, from 0; a number or an array.
            steps: Number of steps. The first has the rate that is due at its end; a rate of zero would waste it.
        """
        falling = self.decay if self.shape == "wsd" else max(1e-9, 1 - self.warmup)
        fall = SHAPES[self.shape](np.clip((1 - done) / falling, 0, 1))
        rise = np.minimum(1, np.maximum(done, 1 / steps) / max(self.warmup, 1e-9))
        return np.where(done < self.warmup, rise, fall)


LINEAR = Schedule()


def read_schedule(given: Any, warmup: float, averages: bool = False) -> Schedule:
    """Return the schedule that a user gave: ``"NAME"``, ``"NAME decay=SHARE"`` or ``{NAME: {"decay": share}}``.

    With ``averages``, checkpoints of the last ``decay`` of the training are averaged, whatever the shape.

    Raises:
        UserError: If the name or a value is wrong.
    """
    name, settings = split_entry(given, "schedule")
    settings = settings if settings is None or isinstance(settings, Mapping) else {"decay": settings}
    if name not in SHAPES:
        raise unknown_name_error("schedule", name, SHAPES)
    if settings and name != "wsd" and not averages:
        raise UserError(f"Only 'wsd' has a decay, or --average-last; remove it from the schedule '{name}'.")
    check_parameters(settings or {}, ("decay",), "schedule", name)
    return build_dataclass(Schedule, "schedule", name, {**(settings or {}), "shape": name, "warmup": warmup})
