"""Fixed weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from acclimate.corpus.mix.base import History, Mix, register
from acclimate.errors import UserError, unknown_name_error
from acclimate.registry import build_dataclass


@register("fixed", summary="the same weights from start to end; by default all sources get as many tokens")
@dataclass(frozen=True)
class Fixed(Mix):
    """Fixed weights, the cheapest rival of all other mixes.

    Attributes:
        weights: Weight of each source by name; they are divided by their sum, and a source that is missing gets none.
            ``equal`` gives all sources as many tokens, ``size`` as many as their texts have.
    """

    weights: dict[str, float] | str = field(default="equal")

    main = "weights"

    def __post_init__(self) -> None:
        if isinstance(self.weights, str):
            if self.weights not in ("equal", "size"):
                raise UserError(
                    f"Mix 'fixed': 'weights' must be equal, size or a weight per source, not {self.weights}."
                )
        elif min(self.weights.values(), default=-1) < 0 or not sum(self.weights.values()):
            raise UserError(f"Mix 'fixed': weights must be nonnegative, and not all 0, not {self.weights}.")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the mix; parameters other than ``weights`` are the weights of sources, such as ``domain=0.7``."""
        given = dict(settings) if "weights" in settings or not settings else {"weights": dict(settings)}
        return build_dataclass(cls, "mix", cls.name, given)

    def check(self, names: Sequence[str]) -> None:
        """Check that all weights are those of sources."""
        for name in self.weights if isinstance(self.weights, dict) else ():
            if name not in names:
                raise unknown_name_error("source of the mix 'fixed'", name, names)

    def propose(self, history: History) -> np.ndarray:
        """Return the weights."""
        if isinstance(self.weights, str):
            return history.uniform if self.weights == "equal" else history.proportional
        found = np.array([self.weights.get(name, 0.0) for name in history.names])
        return found / found.sum()
