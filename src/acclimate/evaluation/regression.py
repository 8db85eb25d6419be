"""Metrics of predicted numbers: rank correlation, correlation, and errors in the unit of the target.

Scores of similarity are such numbers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.stats import rankdata

from acclimate.evaluation.scoring import MIN_ITEMS, Collapse, Scoring, register

MIN_SPREAD = 0.02
"""Predictions are constant if their standard deviation is below this share of the true values'."""


@register("regression")
@dataclass(frozen=True)
class RegressionScoring(Scoring):
    """Regression; gold and predicted are numbers.

    ``spearman`` is Spearman's rank correlation with mean ranks for ties, ``pearson`` Pearson's correlation, both in
    [-1, 1]. A correlation with constant values, which is undefined, counts as zero.
    """

    hub_task: ClassVar[tuple[str, str]] = ("text-classification", "Text Regression")
    errors: ClassVar[tuple[str, ...]] = ("rmse", "mae")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return ("spearman", "pearson")

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the moments of each item, or its error and a one.

        For ``spearman`` these are the moments of the ranks among all items; :meth:`item_measure` ranks again.
        """
        true, shown = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
        if metric == "spearman":
            true, shown = rankdata(true), rankdata(shown)
        elif metric in self.errors:
            difference = shown - true
            return np.stack([difference**2 if metric == "rmse" else np.abs(difference), np.ones(len(true))], -1)
        elif metric != "pearson":
            raise ValueError(f"Unknown metric '{metric}'. Available: {', '.join((*self.metrics, *self.errors))}.")
        x, y = _standardize(true), _standardize(shown)
        return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], -1)

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Return the correlation, or the error in the unit of the target."""
        if metric in self.errors:
            mean = sums[..., 0] / np.maximum(sums[..., 1], 1e-12)
            return np.asarray(np.sqrt(mean) if metric == "rmse" else mean)
        n, x, y, xx, yy, xy = (sums[..., place] for place in range(6))
        n = np.maximum(n, 1e-12)
        return _correlation(xx - x * x / n, yy - y * y / n, xy - x * y / n)

    def item_measure(
        self, gold: Sequence[Any], predicted: Sequence[Any], metric: str
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return a function from weights of the items to Spearman's correlation, which ranks each resample."""
        if metric != "spearman":
            return None
        ranks = [weighted_ranks(np.asarray(values, dtype=float)) for values in (gold, predicted)]

        def score(weights: np.ndarray) -> np.ndarray:
            total = np.maximum(weights.sum(-1, keepdims=True), 1e-12)
            x, y = (rank(weights) for rank in ranks)
            x, y = (values - (weights * values).sum(-1, keepdims=True) / total for values in (x, y))
            return _correlation(*((weights * product).sum(-1) for product in (x * x, y * y, x * y)))

        return score

    def find_collapse(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
        """Return the mean prediction if all are nearly equal, while the true values differ."""
        true, shown = np.asarray(gold, dtype=float), np.asarray(predicted, dtype=float)
        if len(shown) < MIN_ITEMS or shown.std() >= MIN_SPREAD * true.std():
            return None
        return Collapse(round(float(shown.mean()), 4), len(shown))


def weighted_ranks(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from weights (..., items) to the ranks (..., items) of values that occur so often.

    Equal values have the mean of their ranks.
    """
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    order, ends = np.argsort(group, kind="stable"), np.cumsum(size)

    def ranks(weights: np.ndarray) -> np.ndarray:
        until = np.cumsum(weights[..., order], -1)[..., ends - 1]
        before = np.concatenate([np.zeros_like(until[..., :1]), until[..., :-1]], -1)
        return ((until + before + 1) / 2)[..., group]

    return ranks


def _standardize(values: np.ndarray) -> np.ndarray:
    """Return values with mean 0 and standard deviation 1, or zeros if they are constant."""
    centred = values - values.mean() if len(values) else values
    spread = centred.std() if len(values) else 0.0
    return centred / spread if spread > 1e-12 * max(1.0, float(np.abs(values).max(initial=0.0))) else 0.0 * centred


def _correlation(xx: np.ndarray, yy: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Return correlations from centred second moments; zero where one side is constant."""
    defined = (xx > 1e-9) & (yy > 1e-9)
    found = np.divide(xy, np.sqrt(xx * yy), out=np.zeros(np.shape(xy)), where=defined)
    return np.clip(found, -1.0, 1.0)


def regression_metrics(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """Score predicted numbers.

    Args:
        gold: True values (items,).
        predicted: Predicted values (items,).

    Returns:
        ``spearman`` and ``pearson`` in [-1, 1], and ``rmse`` and ``mae`` in the unit of the target.

    Raises:
        ValueError: If there are no items, or the lengths differ.
    """
    if not len(gold) or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} true values do not match {len(predicted)} predictions.")
    scoring = RegressionScoring()
    return {name: scoring.score(gold, predicted, name) for name in (*scoring.metrics, *scoring.errors)}
