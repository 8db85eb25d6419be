"""Is the difference between two methods more than luck: paired intervals, permutation tests and Holm's correction.

Two kinds of luck stand behind a score. The *test items* could have been others, and so could the *seeds* of
training. The design is crossed: every seed is scored on the same items, and both methods are scored on the same
seeds and items. An interval that looks at one kind of luck only is too narrow.

The paired t-test over seeds, as papers report it; for comparison with them, not to decide by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from acclimate.evaluation.bootstrap import (
    block_sizes,
    bootstrap_weights,
    count_tables,
    difference_from_counts,
    difference_from_function,
    label_arrays,
)
from acclimate.evaluation.scoring import Scoring, SingleLabel

Metric = str | Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval.

    Attributes:
        difference: The observed difference, first minus second.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p: Two-sided p-value of "no difference"; it is below 0.05 exactly when the interval excludes zero.
    """

    difference: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """``"win"`` if the interval is above zero, ``"loss"`` if below, else ``"tie"`` (more is taken as better)."""
        return "win" if self.low > 0 else "loss" if self.high < 0 else "tie"

    def as_dict(self) -> dict[str, Any]:
        """Return the four numbers, and the verdict, ready for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def paired_bootstrap(
    gold: Any,
    predictions_a: Sequence[Any],
    predictions_b: Sequence[Any],
    metric: Metric = "macro_f1",
    n: int = 2000,
    seed: int = 0,
    groups: Sequence[Any] | None = None,
    scoring: Scoring | None = None,
) -> Interval:
    """Interval for how much better method ``a`` scores than method ``b``, over seeds and test items.

    The estimate is the mean over seeds of ``metric(a) - metric(b)``. Its variance has two parts. The part of the
    items is the variance of the estimate over ``n`` bootstrap resamples of the items, where both methods and all
    seeds see the same resample. The part of the seeds is that of resampling the seeds, times ``S / (S - 1)``: the
    plain bootstrap of ``S`` values understates the variance of their mean by that factor, which for three seeds
    is a third. What one seed does to one item is in both parts and is counted once. The interval is
    ``estimate ± t * sqrt(items + seeds)`` with the quantile of Student's t at the Satterthwaite degrees of freedom,
    so that few seeds are paid for only as far as seeds are what varies.

    Measured coverage of a true difference of zero (1,000 simulated studies each; 139 items of 6 classes and 1,120
    items of 3; sd of macro-F1 over seeds from 0.01 to 0.10): 92 to 98 % with 3 seeds, 95 to 97 % with 5. The plain
    percentile bootstrap over seeds and items: 78 to 99 % and 85 to 98 %. With 2 seeds ours covers 90 to 98 %, at
    the price of very wide intervals. Three seeds are the least that make sense, five are better.

    With one seed the luck of the seeds cannot be seen: the interval then speaks about those two trained models.

    With ``groups`` the draws are the groups. The estimate stays the mean over seeds, which is what tables of scores
    show; so a group weighs ``w = its seeds / all seeds``, and both parts are variances of that weighted mean. That of
    the seeds is the variance between group means times ``sum(w ** 2)``: 1 / 3 for three groups of one size, 0.36 for
    groups of 2, 2 and 1. It takes all group means to vary alike, as they do where adaptation is what varies. Where
    fine-tuning varies more, larger groups vary less and weigh more, and the interval errs to the wide side.

    Args:
        gold: What is true of each item: class numbers, shape (items,), or what ``scoring`` takes.
        predictions_a: For each seed, what method ``a`` predicted for each item.
        predictions_b: The same for method ``b``; entry ``i`` of both is the same seed.
        metric: One of the scoring, or a function of arrays (gold, predicted), which is slower.
        n: Number of bootstrap resamples.
        seed: Seed of the resampling.
        groups: For each seed, what it shares with others (for example the seed of the adaptation that several
            fine-tunings started from). Seeds of one group count as one draw of luck. None: each is its own.
        scoring: What the metric is made of; None: one label an item (macro_f1, micro_f1 or accuracy).

    Returns:
        The difference in units of the metric. A single item says nothing of others, nor do up to five that all differ
        by the same: the interval then is all that is possible.

    Raises:
        ValueError: If the shapes do not fit together, or nothing was given.
    """
    if callable(metric):
        items, score = difference_from_function(gold, predictions_a, predictions_b, metric)
    else:
        items, score = difference_from_counts(gold, predictions_a, predictions_b, metric, scoring or SingleLabel())
    observed = score(np.ones((1, items)))[0]
    resampled = np.concatenate([score(weights) for weights in bootstrap_weights(items, n, seed)])  # (n, seeds)
    draws = _group_seeds(groups, len(observed))
    whole, parts = (np.stack([values[..., draw].mean(-1) for draw in draws], -1) for values in (observed, resampled))
    found = _student_interval(whole, parts, float(observed.mean()), items=items, sizes=[len(draw) for draw in draws])
    if callable(metric):
        return found
    # Two seeds can ask for more than there is: a share differs by no more than one.
    return Interval(found.difference, max(found.low, -1.0), min(found.high, 1.0), found.p)


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, weights: npt.ArrayLike | None = None, n: int = 2000, seed: int = 0
) -> Interval:
    """Interval for the mean difference ``a - b`` of values that belong to the same items, such as losses of texts.

    Args:
        a: Values, shape (items,), or (seeds, items) when several trained models were measured.
        b: The same for the other side; a single row is compared with every row of ``a``.
        weights: Weight of each item in the mean, shape (items,), for example its number of masked tokens.
            None weighs all alike.
        n: Number of bootstrap resamples of the items.
        seed: Seed of the resampling.

    Returns:
        The difference in the units of the values. The parts of items and seeds are joined as in
        :func:`paired_bootstrap`. With a single item, or up to five that all differ by the same, the interval has
        no ends: they are infinite.

    Raises:
        ValueError: If the shapes do not fit together, or nothing was given.
    """
    difference = np.atleast_2d(np.asarray(a, dtype=float)) - np.atleast_2d(np.asarray(b, dtype=float))
    items = difference.shape[1]
    weight = np.ones(items) if weights is None else np.asarray(weights, dtype=float)
    if not items or weight.shape != (items,) or weight.sum() <= 0:
        raise ValueError("paired_difference needs at least one item, and as many weights as items.")
    weighted = (weight * difference).T  # (items, seeds)
    observed = weighted.sum(0) / weight.sum()
    parts = []
    for drawn in bootstrap_weights(items, n, seed):
        total = drawn @ weight
        parts.append((drawn @ weighted)[total > 0] / total[total > 0, None])
    return _student_interval(observed, np.concatenate(parts), float(observed.mean()), items=items)


def permutation_test(
    gold: Any,
    predictions_a: Sequence[Any],
    predictions_b: Sequence[Any],
    metric: Metric = "macro_f1",
    n: int = 2000,
    seed: int = 0,
    scoring: Scoring | None = None,
) -> float:
    """Two-sided p-value for "these trained models are interchangeable on every test item".

    The exact null: for each item, independently, the predictions of all seeds of ``a`` and those of all seeds of
    ``b`` could have been swapped without changing their joint distribution. Under it each item is swapped with
    probability one half, for all seeds together, and the mean difference over seeds is computed anew. The null is
    about the models at hand: it knows the luck of the items but not that of the seeds, so a small p-value says
    that these models differ, not that the methods would differ again with other seeds. For the latter read the p
    of :func:`paired_bootstrap`.

    Args:
        gold: As in :func:`paired_bootstrap`.
        predictions_a: As there.
        predictions_b: As there.
        metric: As there.
        n: Number of random swaps; the smallest p-value that can come out is ``1 / (n + 1)``.
        seed: Seed of the swaps.
        scoring: As there.

    Returns:
        The share of swaps, the observed order counted as one, with a difference at least as large.

    Raises:
        ValueError: If the shapes do not fit together, or nothing was given.
    """
    rng = np.random.default_rng(seed)
    if callable(metric):
        first, second, truth = label_arrays(gold, predictions_a, predictions_b)
        observed = np.mean([metric(truth, x) - metric(truth, y) for x, y in zip(first, second, strict=True)])
        swapped = np.empty(n)
        for i in range(n):
            swap = rng.random(truth.size) < 0.5
            pairs = zip(np.where(swap, second, first), np.where(swap, first, second), strict=True)
            swapped[i] = np.mean([metric(truth, x) - metric(truth, y) for x, y in pairs])
    else:
        scoring = scoring or SingleLabel()
        tables = count_tables(gold, predictions_a, predictions_b, metric, scoring)
        count = len(tables[0][0])
        one = np.ones((1, count))
        observed = np.mean([scoring.value(one @ a, metric) - scoring.value(one @ b, metric) for a, b in tables])
        blocks = []
        for rows in block_sizes(n, count):
            swap = (rng.random((rows, count)) < 0.5).astype(float)
            keep = 1.0 - swap
            found = [
                scoring.value(keep @ a + swap @ b, metric) - scoring.value(keep @ b + swap @ a, metric)
                for a, b in tables
            ]
            blocks.append(np.mean(found, axis=0))
        swapped = np.concatenate(blocks)
    hits = np.count_nonzero(np.abs(swapped) >= abs(observed) - 1e-12)
    return float((hits + 1) / (n + 1))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Correct p-values for having asked several questions (Holm, 1979), in the order given.

    Args:
        pvalues: One p-value per question.

    Returns:
        Adjusted p-values: comparing each with 0.05 keeps the chance of any false alarm at or below 5 %.
    """
    values = np.asarray(pvalues, dtype=float)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def _group_seeds(groups: Sequence[Any] | None, seeds: int) -> list[list[int]]:
    """Return which seeds are one draw of luck: those that share a group if there are at least two, or each its own."""
    if groups is None or len(set(groups)) < 2:
        return [[seed] for seed in range(seeds)]
    if len(groups) != seeds:
        raise ValueError("Give one group for each seed.")
    return [[seed for seed in range(seeds) if groups[seed] == name] for name in dict.fromkeys(groups)]


def _weighted_mean(values: np.ndarray, weights: Sequence[int]) -> np.ndarray:
    """Average over the last axis; with equal weights exactly as without."""
    return np.asarray(values.mean(-1) if len(set(weights)) == 1 else values @ (np.asarray(weights) / sum(weights)))


def _student_interval(
    observed: np.ndarray, resampled: np.ndarray, estimate: float, items: int, sizes: Sequence[int] | None = None
) -> Interval:
    """Join the luck of items and of seeds into an interval of Student's t.

    Args:
        observed: Difference for each draw (a seed, or a group of seeds), shape (draws,).
        resampled: The same on resamples of the items, shape (n, draws).
        estimate: The difference to report: the mean of the draws, weighted by ``sizes``.
        items: Number of items.
        sizes: Seeds of each draw; None: one each.
    """
    if items < 2:  # no resample differs from another, which is no certainty
        return Interval(estimate, -np.inf, np.inf, 1.0)
    seeds, sizes = len(observed), sizes or [1] * len(observed)
    squares = [size * size for size in sizes]
    mean_part = float(_weighted_mean(resampled, sizes).var(ddof=1)) * items / (items - 1)
    seed_part, item_part = 0.0, mean_part
    if seeds > 1:
        alike = sum(sizes) ** 2 / sum(squares)  # 1 / sum(w ** 2): as many equal draws would leave the same variance
        seed_part = float(observed.var(ddof=1)) / alike
        each = float(_weighted_mean(resampled.var(axis=0, ddof=1), squares)) * items / (items - 1)
        # Luck of a seed on an item (an item that one seed gets right and another does not) is in both parts. With
        # a of all draws and c of one, mean_part is a + sum(w ** 2 * c), and each is a + sum(w ** 2 * c) * alike.
        both = max(0.0, each - mean_part) / (alike - 1)
        item_part = max(mean_part - both, mean_part - seed_part, 0.0)
    variance = item_part + seed_part
    if variance < 1e-30:
        if abs(estimate) < 1e-15:
            return Interval(estimate, estimate, estimate, 1.0)
        # Where all items agree, each could have been the other way round: the p of swapping them, no smaller. Of up
        # to five that is no evidence, and no resample says how far off they may be.
        p = 2.0 ** (1 - items)
        return Interval(estimate, estimate, estimate, p) if p < 0.05 else Interval(estimate, -np.inf, np.inf, p)
    error = float(np.sqrt(variance))
    spread = item_part**2 / (items - 1) + seed_part**2 / max(seeds - 1, 1)
    freedom = variance**2 / spread
    reach = float(stats.t.ppf(0.975, freedom)) * error
    p = float(2 * stats.t.sf(abs(estimate) / error, freedom))
    return Interval(estimate, estimate - reach, estimate + reach, p)


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value of "the mean difference over seeds is zero", by Student's t with ``n - 1`` degrees.

    It takes the score of each seed as a number without error. So it ignores what :func:`paired_bootstrap` looks at
    besides: the luck of the test items, which all seeds share, so that more seeds make p small although other items
    might turn the difference around; and that seeds which start from the same adapted model are no independent draws.

    Args:
        a: Score of one method for each seed.
        b: Score of the other; entry ``i`` of both is the same seed.

    Returns:
        None with fewer than two seeds; 1 if both are the same for every seed, and 0 if they differ by the same amount,
        not zero, for every one.

    Raises:
        ValueError: If there are not as many of one as of the other.
    """
    if len(a) != len(b):
        raise ValueError("A paired test needs as many seeds of one method as of the other.")
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if len(difference) < 2:
        return None
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / len(difference) ** 0.5
    if error < 1e-15:
        return 1.0 if abs(mean) < 1e-15 else 0.0
    return float(2 * stats.t.sf(abs(mean) / error, len(difference) - 1))
