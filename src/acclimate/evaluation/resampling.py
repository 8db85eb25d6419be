"""Other test items that could have been: bootstrap resamples, and what a score would have been on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from acclimate.evaluation.scoring import Scoring

CHUNK = 4_000_000
"""Cells of a (resamples, items) block: 32 MB of float64."""


def in_blocks(n: int, items: int) -> Iterator[int]:
    """Cut ``n`` resamples into blocks that fit in memory."""
    size = max(1, CHUNK // items)
    for start in range(0, n, size):
        yield min(size, n - start)


def resamples(items: int, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks of bootstrap counts, shape (rows, items); each row sums to the number of items."""
    rng = np.random.default_rng(seed)
    for rows in in_blocks(n, items):
        drawn = rng.integers(items, size=(rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(float)


def item_intervals(
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
        for weights in resamples(items, n, seed):
            for metric, table in counts.items():
                if len(table) == items:
                    drawn[metric].append(scoring.value(weights @ table, metric))
    ends = {metric: np.percentile(np.concatenate(values), [2.5, 97.5]) for metric, values in drawn.items()}
    return {metric: (float(low), float(high)) for metric, (low, high) in ends.items()}
