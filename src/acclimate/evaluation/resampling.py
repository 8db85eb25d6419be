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


def item_interval(
    scoring: Scoring, gold: Sequence[Any], predicted: Sequence[Any], metric: str, n: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % interval of one model's score over the choice of test items, by the percentiles of a bootstrap.

    It speaks of this one model: how another seed of training would have come out is not in it.

    Args:
        scoring: Of the task.
        gold: What is true of each item, as the scoring wants it.
        predicted: What the model says.
        metric: One of the scoring's.
        n: Resamples.
        seed: Of the resamples.
    """
    counts = scoring.counts(gold, predicted, metric)
    drawn = np.concatenate([scoring.value(weights @ counts, metric) for weights in resamples(len(counts), n, seed)])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)
