"""Weights from how far each source is from the loss that it can reach (Velocitune, Luo et al., ACL 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import nnls

from acclimate.api import (
    History,
    Measure,
    MultiplicativeMix,
    UserError,
    expected_steps,
    register_mix,
    unknown_name_error,
)

EXPONENTS = np.linspace(0.05, 1.5, 146)
"""Exponents of the scaling law among which the best fit is searched."""
LEAST_POINTS = 4
"""Losses of a source that a fit needs; the law has three parameters."""


@register_mix(
    "velocitune",
    paper="Luo et al., ACL 2025 (Velocitune)",
    summary="more of the sources that are far from the loss that their scaling law predicts",
)
@dataclass(frozen=True)
class Velocitune(MultiplicativeMix):
    """Reads more of the sources that learn slowly, measured by the loss that each can reach (Luo et al., ACL 2025).

    A weight is multiplied by ``exp(eta * distance)``, where the distance is the share of the way from the first loss
    to the target loss that is still left, between 0 and 1. A source whose target is no lower than its first loss, such
    as general text that is being forgotten, has distance 1 while its loss is above the target, else 0.

    The target losses are given, or predicted: the initial weights apply until ``fit`` of the training, then the law
    ``L = E + B / tokens**beta`` is fitted to the losses so far and read off at the tokens that the source would have
    at the end. The paper fits it to a short run before the training.

    Attributes:
        eta: Factor of the distances; 1 in the paper.
        fit: Share of the training with the initial weights, for the fit of the targets; no effect if all are given.
        targets: Target loss of sources by name, in nats per predicted token; others are predicted.
    """

    eta: float = 1.0
    fit: float = 0.25
    targets: dict[str, float] | None = None

    main: ClassVar[str] = "targets"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        super().__post_init__()
        if self.eta <= 0 or not 0 < self.fit < 1:
            raise UserError(
                f"Mix 'velocitune': 'eta' must be positive and 'fit' between 0 and 1, not {self.eta} and {self.fit}."
            )

    @property
    def reads(self) -> tuple[Measure, ...]:
        """The held-out losses."""
        return ("heldout_loss",)

    @property
    def delay(self) -> int:
        """The losses that a fit of the targets needs; given targets need a second loss."""
        return 1 if self.targets else LEAST_POINTS

    def check(self, names: Sequence[str]) -> None:
        """Check that the given targets belong to sources."""
        for name in self.targets or ():
            if name not in names:
                raise unknown_name_error("source that has a target in the mix 'velocitune'", name, names)

    def exponents(self, history: History) -> np.ndarray:
        """Return the distances times ``eta``; zeros until the targets are fitted."""
        losses = history.measured("heldout_loss")
        targets = self.find_targets(history, losses)
        return np.zeros(len(history.names)) if targets is None else self.eta * distances(losses, targets)

    def find_targets(self, history: History, losses: np.ndarray) -> np.ndarray | None:
        """Return the target losses (sources,); None while they cannot be predicted yet."""
        given = np.array([(self.targets or {}).get(name, np.nan) for name in history.names])
        if not np.isnan(given).any():
            return given
        steps, total = np.array([one.step for one in history.rounds]), expected_steps(history)
        tokens = history.measured("tokens")
        ends = np.flatnonzero((steps >= self.fit * total) & ((tokens > 0).all(axis=1).cumsum() >= LEAST_POINTS))
        if not len(ends):
            return None
        used = slice(1, ends[0] + 1)
        return np.array(
            [
                predict_loss(
                    tokens[used, source], losses[used, source], tokens[ends[0], source] * total / steps[ends[0]]
                )
                if np.isnan(target)
                else target
                for source, target in enumerate(given)
            ]
        )


def distances(losses: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the share of the way to its target that is left for each source, between 0 and 1 (sources,).

    Args:
        losses: Losses of all rounds (rounds, sources).
        targets: Target losses (sources,).
    """
    way, left = losses[0] - targets, losses[-1] - targets
    return np.where(way > 0, np.clip(left / np.where(way > 0, way, 1.0), 0.0, 1.0), (left > 0).astype(float))


def predict_loss(tokens: np.ndarray, losses: np.ndarray, at: float) -> float:
    """Return the loss after ``at`` tokens that the law ``E + B / tokens**beta`` predicts, with E and B nonnegative.

    Given ``beta``, E and B are a linear least-squares problem; ``beta`` is the best of :data:`EXPONENTS`.

    Args:
        tokens: Tokens read before each loss, those with 0 tokens are left out (points,).
        losses: Losses (points,).
        at: Tokens for the prediction.
    """
    known = (tokens > 0) & np.isfinite(losses)
    scaled = tokens[known] / at  # the law holds in any unit of tokens
    best = min(
        (nnls(np.stack([np.ones(len(scaled)), scaled**-beta], axis=1), losses[known]) for beta in EXPONENTS),
        key=lambda found: found[1],
    )
    return float(best[0].sum())
