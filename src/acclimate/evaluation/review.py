"""Scores of a classifier where its label is rarer than in the test split, and what reviewing its best texts finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RankedItems:
    """Test items with the score that they are ranked by.

    Attributes:
        scores: Score of the label, such as its probability (items,).
        is_positive: Whether the label is true (items,).
        is_shown: Whether the model predicts it (items,).
    """

    scores: np.ndarray
    is_positive: np.ndarray
    is_shown: np.ndarray


def measure_review(
    items: RankedItems, prevalence: float, budgets: Sequence[float], weights: np.ndarray | None = None
) -> dict[str, float]:
    """Return what a classifier achieves where its label has another prevalence than in the test split.

    The rates of true and false positives do not depend on the prevalence p, if the texts of each class are like those
    of the test split. So the precision there is ``p TPR / (p TPR + (1 - p) FPR)``, and reviewing all texts above a
    threshold takes a share of ``p TPR + (1 - p) FPR`` of all texts to find a share of TPR of the positive ones
    (Tonneau et al., 2024, measure the same on a representative sample). Between thresholds, and among texts with equal
    scores, texts are drawn at random.

    Args:
        items: The test items.
        prevalence: Share of the label where the model is used, between 0 and 1.
        budgets: Shares of all texts that are reviewed.
        weights: Weight of each item within its class (items,); None for equal weights.

    Returns:
        ``precision``, ``recall`` and ``f1`` of the predictions; ``average_precision`` of the ranking; and, for each
        budget, ``found at BUDGET``, the share of the positive texts that is reviewed.
    """
    weights = np.ones(len(items.scores)) if weights is None else weights
    positive, negative = (weights * side for side in (items.is_positive, ~items.is_positive))
    shares = prevalence * positive / positive.sum() + (1 - prevalence) * negative / negative.sum()
    hits = shares * items.is_positive
    shown = float(shares[items.is_shown].sum())
    recall = float(hits[items.is_shown].sum()) / prevalence
    precision = recall * prevalence / shown if shown else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    order = np.argsort(-items.scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(items.scores[order])), len(order) - 1)  # of each group of equal scores
    reviewed, found = (np.append(0.0, np.cumsum(side[order])[ends]) for side in (shares, hits))
    steps = np.diff(found)
    precisions = np.divide(found[1:], reviewed[1:], out=np.zeros(len(steps)), where=reviewed[1:] > 0)
    values = {"precision": precision, "recall": recall, "f1": f1}
    values["average_precision"] = float((steps * precisions).sum() / prevalence)
    return values | {
        f"found at {budget:g}": float(np.interp(budget, reviewed, found) / prevalence) for budget in budgets
    }


def resample_classes(is_positive: np.ndarray, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield bootstrap weights (items,), drawn within each class, so that neither class is ever empty."""
    rng = np.random.default_rng(seed)
    sides = [np.flatnonzero(is_positive), np.flatnonzero(~is_positive)]
    for _ in range(n):
        weights = np.zeros(len(is_positive))
        for side in sides:
            weights[side] = rng.multinomial(len(side), np.full(len(side), 1 / len(side)))
        yield weights
