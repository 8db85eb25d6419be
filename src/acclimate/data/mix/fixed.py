"""Fixed weights, which other mixes start from as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from acclimate.base.errors import UserError, shorten, unknown_name_error
from acclimate.base.registry import build_dataclass
from acclimate.data.mix.base import History, Mix, register

Weights = dict[str, float] | str
"""``equal``: as many tokens of each source; ``size``: in proportion to their texts; or a weight per source by name."""


def check_weights(mix: str, weights: Weights) -> None:
    """Check weights that a user gave.

    Args:
        mix: Name of the mix.
        weights: The weights.

    Raises:
        UserError: If they are neither names of weights nor nonnegative numbers, not all 0.
    """
    if isinstance(weights, str):
        if weights not in ("equal", "size"):
            raise UserError(f"Mix '{mix}': weights are equal, size, or a number per source, not {shorten(weights)}.")
    elif min(weights.values(), default=-1) < 0 or not sum(weights.values()):
        raise UserError(f"Mix '{mix}': weights must be nonnegative, and not all 0, not {shorten(weights)}.")


def check_names(mix: str, given: Sequence[str] | Weights, names: Sequence[str]) -> None:
    """Check that names that a user gave are names of sources.

    Raises:
        UserError: If one is not.
    """
    for name in () if isinstance(given, str) else given:
        if name not in names:
            raise unknown_name_error(f"source of the mix '{mix}'", name, names)


def find_weights(weights: Weights, names: Sequence[str], sizes: np.ndarray) -> np.ndarray:
    """Return the weights of sources with these names and tokens: (sources,), with the sum 1."""
    if weights == "equal":
        found = np.ones(len(names))
    elif isinstance(weights, str):
        found = np.asarray(sizes, dtype=float)
    else:
        found = np.array([weights.get(name, 0.0) for name in names], dtype=float)
    return found / found.sum()


@register("fixed", summary="the same weights from start to end; by default all sources get as many tokens")
@dataclass(frozen=True)
class Fixed(Mix):
    """Fixed weights, the baseline of all other mixes.

    Attributes:
        weights: Weight of each source by name; they are divided by their sum, and a source that is missing gets none.
            ``equal`` gives all sources as many tokens, ``size`` as many as their texts have.
    """

    weights: Weights = "equal"

    main: ClassVar[str] = "weights"

    def __post_init__(self) -> None:
        check_weights(self.name, self.weights)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make the mix; parameters other than ``weights`` are the weights of sources, such as ``domain=0.7``."""
        given = dict(settings) if "weights" in settings or not settings else {"weights": dict(settings)}
        return build_dataclass(cls, "mix", cls.name, given)

    def check(self, names: Sequence[str]) -> None:
        """Check that all weights belong to sources."""
        check_names(self.name, self.weights, names)

    def describe(self) -> str:
        """Return the name and the weights, as on the command line."""
        if isinstance(self.weights, str):
            return super().describe()
        return " ".join([self.name, *(f"{name}={weight:g}" for name, weight in self.weights.items())])

    def propose(self, history: History) -> np.ndarray:
        """Return the weights."""
        return find_weights(self.weights, history.names, history.sizes)
