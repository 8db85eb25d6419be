"""Mixes that multiply the weights of the sources by factors, the exponentiated gradient of many papers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from acclimate.base.errors import UserError
from acclimate.data.mix.base import AdaptiveMix, History

LEAST = 1e-12
"""Weight from which a source can still recover; a smaller one counts as this."""


@dataclass(frozen=True)
class MultiplicativeMix(AdaptiveMix):
    """A mix whose next weights are the last ones times ``exp(exponent)``, divided by their sum.

    Attributes:
        initial: The weights before the first proposal: ``equal``, or ``size`` for the tokens of the texts.
        smoothing: Share of the weights that is always divided equally.
    """

    initial: Literal["equal", "size"] = "equal"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise UserError(
                f"Mix '{self.name}': 'smoothing' must be at least 0 and less than 1, not {self.smoothing}."
            )

    @abstractmethod
    def exponents(self, history: History) -> np.ndarray:
        """Return the logarithm of the factor of each weight, up to a constant (sources,)."""

    def propose(self, history: History) -> np.ndarray:
        """Return the last weights times their factors."""
        start = history.uniform if self.initial == "equal" else history.proportional
        last = history.weights[-1] if len(history.weights) else start
        exponents = self.exponents(history)
        logs = np.log(np.maximum(last, LEAST)) + np.where(np.isfinite(exponents), exponents, 0.0)
        found = np.exp(logs - logs.max())
        return (1 - self.smoothing) * found / found.sum() + self.smoothing * history.uniform


def expected_steps(history: History) -> float:
    """Return the optimizer steps of the whole training: under a time budget an estimate, at first infinity."""
    if history.steps:
        return float(history.steps)
    return history.step / history.progress if history.step and history.progress else math.inf
