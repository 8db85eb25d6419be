"""Metrics of multiple choice: accuracy, and what it is compared with, such as chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.evaluation.scoring import MIN_ITEMS, Collapse, MeanScoring, find_collapse, pool_rows, register
from acclimate.evaluation.significance import paired_difference

QUANTILE = 1.645
"""A model is better than chance if this holds with 95 % confidence (one-sided)."""


@register("choice")
@dataclass(frozen=True)
class ChoiceScoring(MeanScoring):
    """Multiple choice; gold and predicted are positions of choices, counted from zero."""

    hub_task: ClassVar[tuple[str, str]] = ("multiple-choice", "Multiple Choice")
    names: ClassVar[tuple[str, ...]] = ("accuracy",)
    failure: ClassVar[str] = "are no better than chance, or choose the same position for almost all test items"
    choices: tuple[int, ...] = ()
    """Number of choices of each item (items,)."""

    def item_scores(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> Sequence[float]:
        """Return 1 for each item that is answered correctly, else 0."""
        return [float(truth == shown) for truth, shown in zip(gold, predicted, strict=True)]

    def find_collapse(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
        """Return the most frequent position of a model that is no better than chance, or chooses nothing else.

        The number of correct answers by chance is a sum of independent draws with the probability ``1 / choices``; it
        is compared by the normal approximation with continuity correction. Answers within a group are not independent:
        the variance is at least the variance of the sums over groups.
        """
        if (same := find_collapse(gold, predicted)) is not None or len(gold) < MIN_ITEMS or not self.choices:
            return same
        chance = 1 / np.asarray(self.choices, dtype=float)
        right = np.asarray(self.item_scores(gold, predicted, "accuracy"))
        hits, variance = right.sum(), (chance * (1 - chance)).sum()
        if self.groups is not None and max(self.groups) + 1 < len(gold):
            variance = max(variance, (pool_rows(right - chance, self.groups) ** 2).sum())
        spread = math.sqrt(variance)
        if hits - 0.5 - chance.sum() >= QUANTILE * spread:
            return None
        positions, counts = np.unique(np.asarray(predicted), return_counts=True)
        reason = f"is no better than chance ({hits:.0f} of {len(gold)} items correct, {chance.sum():.1f} by chance)"
        return Collapse(int(positions[counts.argmax()]), int(counts.max()), reason)


def compare_choices(
    gold: Sequence[int],
    predicted: Sequence[int],
    others: Mapping[str, Sequence[float]],
    groups: Sequence[int] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the accuracy of other ways to answer, with the interval of ours minus theirs over items.

    Args:
        gold: The correct positions (items,).
        predicted: The predicted positions (items,).
        others: By name, the probability with which each item is answered correctly (items,).
        groups: Number of the group of each item (items,); None: each item is independent.

    Returns:
        By name ``accuracy``, and ``difference`` with its interval.
    """
    hits = [float(truth == shown) for truth, shown in zip(gold, predicted, strict=True)]
    return {
        name: {
            "accuracy": float(np.mean(theirs)),
            "difference": paired_difference(hits, theirs, groups=groups).as_dict(),
        }
        for name, theirs in others.items()
    }
