"""Differences between paired predictions as functions of the weights of the test items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from acclimate.evaluation.scoring import Scoring

Score = Callable[[np.ndarray], np.ndarray]
"""From weights of items (rows, items) to differences (rows, seeds)."""


def _check(gold: Any, a: Sequence[Any], b: Sequence[Any]) -> None:
    """Raise ValueError unless every seed of both methods has one prediction for each item."""
    if not len(a) or len(a) != len(b) or not hasattr(gold, "__len__") or not len(gold):
        raise ValueError("Give at least one test item, and as many seeds for one method as for the other.")
    if any(not hasattr(row, "__len__") or len(row) != len(gold) for row in (*a, *b)):
        raise ValueError("Every seed needs one prediction for each test item.")


def label_arrays(gold: Any, a: Sequence[Any], b: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both predictions as (seeds, items) and gold as (items,)."""
    _check(gold, a, b)
    first, second, truth = (np.asarray(values, dtype=np.int64) for values in (a, b, gold))
    return first, second, truth


def count_tables(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: str, scoring: Scoring
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each seed, the counts of both methods, of the same width: (items, k).

    Counts are linear in the weights of the items, which is what makes two thousand resamples one matrix product.
    """
    _check(gold, a, b)
    pairs = []
    for x, y in zip(a, b, strict=True):
        tables = [scoring.counts(gold, predicted, metric) for predicted in (x, y)]
        width = max(table.shape[1] for table in tables)
        first, second = (np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables)
        pairs.append((first, second))
    return pairs


def counted_differences(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: str, scoring: Scoring
) -> tuple[int, Score]:
    """Return the number of items, and a function from their weights (rows, items) to differences (rows, seeds)."""
    tables = count_tables(gold, a, b, metric, scoring)

    def score(weights: np.ndarray) -> np.ndarray:
        pairs = [(scoring.value(weights @ x, metric), scoring.value(weights @ y, metric)) for x, y in tables]
        return np.stack([first - second for first, second in pairs], axis=1)

    return len(tables[0][0]), score


def called_differences(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: Callable[[np.ndarray, np.ndarray], float]
) -> tuple[int, Score]:
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
