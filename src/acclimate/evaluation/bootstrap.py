"""Other test items that could have been: bootstrap resamples, and what a score would have been on them.

Differences between paired predictions as functions of the weights of the test items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from acclimate.evaluation.scoring import Scoring

MAX_BLOCK_CELLS = 4_000_000
"""Cells of a (resamples, items) block: 32 MB of float64."""


def block_sizes(n: int, items: int) -> Iterator[int]:
    """Cut ``n`` resamples into blocks that fit in memory."""
    size = max(1, MAX_BLOCK_CELLS // items)
    for start in range(0, n, size):
        yield min(size, n - start)


def bootstrap_weights(items: int, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks of bootstrap counts, shape (rows, items); each row sums to the number of items."""
    rng = np.random.default_rng(seed)
    for rows in block_sizes(n, items):
        drawn = rng.integers(items, size=(rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(float)


def bootstrap_intervals(
    scoring: Scoring,
    gold: Sequence[Any],
    predicted: Sequence[Any],
    metrics: Sequence[str],
    n: int = 2000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of one model's scores over the choice of test items, by the percentiles of a bootstrap.

    It speaks of this one model: how another seed of training would have come out is not in it.

    Args:
        scoring: Of the task.
        gold: What is true of each item, as the scoring wants it.
        predicted: What the model says.
        metrics: Some of the scoring's.
        n: Resamples.
        seed: Of the resamples.
    """
    counts = {metric: scoring.counts(gold, predicted, metric) for metric in metrics}
    drawn: dict[str, list[np.ndarray]] = {metric: [] for metric in metrics}
    for items in {len(table) for table in counts.values()}:  # rows for most metrics, documents for some
        for weights in bootstrap_weights(items, n, seed):
            for metric, table in counts.items():
                if len(table) == items:
                    drawn[metric].append(scoring.value(weights @ table, metric))
    ends = {metric: np.percentile(np.concatenate(values), [2.5, 97.5]) for metric, values in drawn.items()}
    return {metric: (float(low), float(high)) for metric, (low, high) in ends.items()}


WeightedDifference = Callable[[np.ndarray], np.ndarray]
"""From weights of items (rows, items) to differences (rows, seeds)."""


def _check_predictions(gold: Any, a: Sequence[Any], b: Sequence[Any]) -> None:
    """Raise ValueError unless every seed of both methods has one prediction for each item."""
    if not len(a) or len(a) != len(b) or not hasattr(gold, "__len__") or not len(gold):
        raise ValueError("Give at least one test item, and as many seeds for one method as for the other.")
    if any(not hasattr(row, "__len__") or len(row) != len(gold) for row in (*a, *b)):
        raise ValueError("Every seed needs one prediction for each test item.")


def label_arrays(gold: Any, a: Sequence[Any], b: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both predictions as (seeds, items) and gold as (items,)."""
    _check_predictions(gold, a, b)
    first, second, truth = (np.asarray(values, dtype=np.int64) for values in (a, b, gold))
    return first, second, truth


def count_tables(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: str, scoring: Scoring
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each seed, the counts of both methods, of the same width: (items, k).

    Counts are linear in the weights of the items, which is what makes two thousand resamples one matrix product.
    """
    _check_predictions(gold, a, b)
    pairs = []
    for x, y in zip(a, b, strict=True):
        tables = [scoring.counts(gold, predicted, metric) for predicted in (x, y)]
        width = max(table.shape[1] for table in tables)
        first, second = (np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables)
        pairs.append((first, second))
    return pairs


def difference_from_counts(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: str, scoring: Scoring
) -> tuple[int, WeightedDifference]:
    """Return the number of items, and a function from their weights (rows, items) to differences (rows, seeds)."""
    tables = count_tables(gold, a, b, metric, scoring)

    def score(weights: np.ndarray) -> np.ndarray:
        pairs = [(scoring.value(weights @ x, metric), scoring.value(weights @ y, metric)) for x, y in tables]
        return np.stack([first - second for first, second in pairs], axis=1)

    return len(tables[0][0]), score


def difference_from_function(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: Callable[[np.ndarray, np.ndarray], float]
) -> tuple[int, WeightedDifference]:
    """Do the same for a metric that is a function of the labels."""
    first, second, truth = label_arrays(gold, a, b)

    def score(weights: np.ndarray) -> np.ndarray:
        rows = []
        for row in weights.astype(int):
            taken = np.repeat(np.arange(truth.size), row)
            pairs = zip(first[:, taken], second[:, taken], strict=True)
            rows.append([metric(truth[taken], x) - metric(truth[taken], y) for x, y in pairs])
        return np.asarray(rows)

    return truth.size, score
