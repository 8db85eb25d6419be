"""Scores of a classifier where its label is rarer than in the test split, and what reviewing its best texts finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.evaluation.scoring import Scoring
from acclimate.evaluation.significance import block_sizes, bootstrap_weights

FOUND = "found at "
"""Start of the name of the share of positive texts that a budget of reviews finds; the budget follows."""


@dataclass(frozen=True)
class RankedItems:
    """Test items with the score that they are ranked by.

    Attributes:
        scores: Score of the label, such as its probability (items,).
        is_positive: Whether the label is true (items,).
        is_shown: Whether the model predicts it (items,).
        groups: Number of the group of each item (items,); None: items are independent.
    """

    scores: np.ndarray
    is_positive: np.ndarray
    is_shown: np.ndarray
    groups: Sequence[int] | None = None


def review_measures(budgets: Sequence[float]) -> list[str]:
    """Return the names of the measures: of the predictions, of the ranking, and of each budget."""
    return [
        "precision",
        "recall",
        "f1",
        "average_precision",
        *(f"{FOUND}{budget:g}" for budget in sorted(set(budgets))),
    ]


def measure_review(items: RankedItems, prevalence: float, measure: str, weights: np.ndarray | None = None) -> Any:
    """Return what a classifier achieves where its label has another prevalence than in the test split.

    The rates of true and false positives do not depend on the prevalence p, if the texts of each class are like
    the test split's. So the precision there is ``p TPR / (p TPR + (1 - p) FPR)``, and reviewing all texts above a
    threshold takes a share of ``p TPR + (1 - p) FPR`` of all texts to find a share of TPR of the positive ones
    (Tonneau et al., 2024, measure the same on a representative sample). Between thresholds, and among texts with equal
    scores, texts are drawn at random.

    Args:
        items: The test items.
        prevalence: Share of the label where the model is used, between 0 and 1.
        measure: A name of :func:`review_measures`. ``found at BUDGET`` is the share of the positive texts among the
            share BUDGET of all texts with the highest scores.
        weights: Weights of the items within their class (..., items); None for equal weights.

    Returns:
        The measure, for each row of the weights (...); without items of a class, that class counts as nothing.
    """
    weights = np.ones(len(items.scores)) if weights is None else weights
    positive, negative = (weights * side for side in (items.is_positive, ~items.is_positive))
    hits, others = (share * side / np.maximum(side.sum(-1, keepdims=True), 1e-12)
                    for share, side in ((prevalence, positive), (1 - prevalence, negative)))  # fmt: skip
    if not measure.startswith(FOUND) and measure != "average_precision":
        found, false = (side[..., items.is_shown].sum(-1) for side in (hits, others))
        recall = found / prevalence
        if measure == "recall":
            return recall
        precision = found / np.maximum(found + false, 1e-12)
        return precision if measure == "precision" else 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    order = np.argsort(-items.scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(items.scores[order])), len(order) - 1)  # of each group of equal scores
    found, false = (np.cumsum(side[..., order], -1)[..., ends] for side in (hits, others))
    if measure == "average_precision":
        steps = np.diff(found, prepend=0.0)
        return (steps * found / np.maximum(found + false, 1e-12)).sum(-1) / prevalence
    budget, reviewed = float(measure.removeprefix(FOUND)), found + false
    zero = np.zeros((*found.shape[:-1], 1))
    curves = (np.concatenate([zero, side], -1).reshape(-1, found.shape[-1] + 1) for side in (reviewed, found))
    values = [np.interp(budget, *curve) for curve in zip(*curves, strict=True)]
    return np.array(values).reshape(found.shape[:-1]) / prevalence


@dataclass(frozen=True)
class ReviewScoring(Scoring):
    """The measures as a scoring, of which paired statistics take an interval over seeds and items.

    ``gold`` says which items have the label; predictions are pairs of whether it is predicted, and its score.
    """

    name: ClassVar[str] = "review"
    hub_task: ClassVar[tuple[str, str]] = ("text-classification", "Text Classification")
    prevalence: float
    budgets: tuple[float, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the measures."""
        return tuple(review_measures(self.budgets))

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Not used: a measure of a ranking is no function of sums over items."""
        raise NotImplementedError

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Not used, as :meth:`item_counts`."""
        raise NotImplementedError

    def item_measure(
        self, gold: Sequence[Any], predicted: Sequence[Any], metric: str
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from weights of the items (..., items) to measures (...)."""
        shown, scores = np.asarray(predicted, dtype=float).T
        items = RankedItems(scores, np.asarray(gold, dtype=bool), shown > 0)
        return lambda weights: measure_review(items, self.prevalence, metric, weights)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> float:
        """Measure predictions."""
        return float(self.item_measure(gold, predicted, metric)(np.ones(len(gold))))


def resample_classes(
    is_positive: np.ndarray, n: int, seed: int, groups: Sequence[int] | None = None
) -> Iterator[np.ndarray]:
    """Yield blocks of bootstrap weights (resamples, items), drawn within each class, so that none is ever empty.

    Groups are drawn as a whole, over both classes; resamples without one of the classes are left out.
    """
    if groups is not None:
        for drawn in bootstrap_weights(max(groups) + 1, n, seed):
            weights = drawn[:, np.asarray(groups)]
            yield weights[(weights[:, is_positive].sum(1) > 0) & (weights[:, ~is_positive].sum(1) > 0)]
        return
    rng = np.random.default_rng(seed)
    sides = [np.flatnonzero(is_positive), np.flatnonzero(~is_positive)]
    for rows in block_sizes(n, len(is_positive)):
        weights = np.zeros((rows, len(is_positive)))
        for side in sides:
            weights[:, side] = rng.multinomial(len(side), np.full(len(side), 1 / len(side)), rows)
        yield weights
