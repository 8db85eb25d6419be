"""Confidence intervals and significance tests for scores and their differences.

A score varies with the choice of *test items* and with the random *seed* of training. The design is crossed: every
seed is scored on the same items, and both methods are scored on the same seeds and items. An interval that considers
only one of the two sources of variance is too narrow.

What is resampled, swapped and counted are the *units* of a scoring: the items, or groups of items that were drawn
together, such as the sentences of a document (cluster bootstrap; Miller, 2024, finds errors over three times as large
as without on popular benchmarks).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from acclimate.evaluation.scoring import Scoring, SingleLabel, pool_rows
from acclimate.results.scores import judge, sign_of

MAX_BLOCK_ELEMENTS = 4_000_000
"""Elements of a block of resamples, of shape (resamples, units): 32 MB of float64."""

WeightedDifference = Callable[[np.ndarray], np.ndarray]
"""Maps weights of the units (resamples, units) to differences of scores (resamples, seeds)."""


class PairedPredictions(NamedTuple):
    """The predictions of two methods on one task: see :func:`paired_bootstrap`.

    Attributes:
        b: None for one method alone.
        names: Names of the units (units,), or of the items of each, as a frozenset; tasks that share names were
            measured on the same texts. Or the identity of all texts; tasks with the same one and the same groups have
            the same units. None: the gold answers are it.
    """

    gold: Any
    a: Sequence[Any]
    b: Sequence[Any] | None
    metric: str
    scoring: Scoring
    names: Sequence[Hashable] | str | None = None

    def unit_names(self, units: int) -> list[Hashable]:
        """Return the name of each unit; equal tests have equal names."""
        if self.names is not None and not isinstance(self.names, str):
            return list(self.names)
        # NumPy's numbers are not known to JSON.
        test = json.dumps([self.names or list(self.gold), self.scoring.unit_of(self.metric)], default=str)
        return [(test, number) for number in range(units)]


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % confidence interval.

    Attributes:
        difference: The observed difference, first minus second.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p: Two-sided p-value of "no difference", below 0.05 exactly if the interval excludes zero.
        is_error: Whether lower values are better.
        error: Standard error of the difference; infinite if it cannot be estimated.
        freedom: Degrees of freedom of Student's t, for intervals of another confidence.
    """

    difference: float
    low: float
    high: float
    p: float
    is_error: bool = False
    error: float = field(default=np.inf, compare=False)
    freedom: float = field(default=np.inf, compare=False)

    @property
    def sign(self) -> int:
        """One if the whole interval is above zero, -1 if it is below, else 0."""
        return sign_of(self.low, self.high)

    @property
    def verdict(self) -> str:
        """Whether the whole interval is on the better side of zero, on the other, or neither."""
        return judge(self.low, self.high, self.is_error)

    def as_dict(self) -> dict[str, Any]:
        """Return the four numbers and the verdict, ready for JSON."""
        return {name: getattr(self, name) for name in ("difference", "low", "high", "p", "verdict")}


def bootstrap_weights(items: int, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks of bootstrap counts, shape (resamples, items); each row sums to the number of items."""
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
    """Return the 95 % percentile bootstrap interval of the scores of one model over the test items.

    The interval is about this model; it does not contain the variance between seeds of training.

    Args:
        scoring: The scoring of the task.
        gold: The true answer to each item, in the form that the scoring expects.
        predicted: The predicted answer to each item.
        metrics: Metrics of the scoring.
        n: Number of resamples.
        seed: Random seed of the resampling.
    """
    made = {metric: scoring.resampler(gold, predicted, metric) for metric in metrics}
    scores: dict[str, list[np.ndarray]] = {metric: [] for metric in metrics}
    for items in {count for count, _ in made.values()}:  # the units are rows or documents, depending on the metric
        for weights in bootstrap_weights(items, n, seed):
            for metric, (count, score) in made.items():
                if count == items:
                    scores[metric].append(score(weights))
    ends = {metric: np.percentile(np.concatenate(values), [2.5, 97.5]) for metric, values in scores.items()}
    return {metric: (float(low), float(high)) for metric, (low, high) in ends.items()}


def score_interval(
    scoring: Scoring, gold: Sequence[Any], predictions: Sequence[Sequence[Any]], metric: str, n: int = 2000
) -> Interval:
    """Return the mean score of one method over seeds, as a "difference" to nothing, with its 95 % interval.

    It contains the variance over seeds and test items as :func:`paired_bootstrap` does; with one seed it is about this
    one model. If all units agree, as when all answers are right, a bootstrap sees no variance: the interval then has
    the scores that so many agreeing units do not exclude (with all of ``u`` right, from ``0.025 ** (1 / u)`` on, the
    exact binomial bound).

    Args:
        scoring: The scoring of the task.
        gold: The true answer to each item.
        predictions: For each seed, the predictions for all items.
        metric: A metric or an error of the scoring.
        n: Number of resamples.
    """
    task = PairedPredictions(gold, predictions, None, metric, scoring)
    found = mean_paired_bootstrap([task], n)
    if found.is_error or found.low < found.high:
        return found
    units, _ = weighted_difference(*task[:5])
    share = 0.025 ** (1 / units)
    return replace(found, low=found.difference * share, high=1 - (1 - found.difference) * share)


def paired_bootstrap(
    gold: Any,
    predictions_a: Sequence[Any],
    predictions_b: Sequence[Any],
    metric: str = "macro_f1",
    n: int = 2000,
    seed: int = 0,
    seed_groups: Sequence[Any] | None = None,
    scoring: Scoring | None = None,
) -> Interval:
    """Estimate how much better method ``a`` scores than method ``b``, with an interval over seeds and test items.

    The estimate is the mean over seeds of ``metric(a) - metric(b)``. Its variance has two components. The item
    component is the variance of the estimate over ``n`` bootstrap resamples of the items, or of their groups if the
    scoring has any, where both methods and all seeds see the same resample. The seed component is the variance over
    resamples of the seeds, times ``S / (S - 1)``: the plain bootstrap of ``S`` values underestimates the variance of
    their mean by this factor, for three seeds by a third. The interaction of seed and item is in both components and
    is counted once. The interval is ``estimate ± t * sqrt(items + seeds)`` with the quantile of Student's t for the
    Satterthwaite degrees of freedom. A small number of seeds thus widens the interval only as far as the seeds
    contribute to the variance.

    Measured coverage of a true difference of zero, where seeds contribute a quarter to four times the variance that
    items do (3,000 draws each, with and without interaction): 91.6 to 96.5 % with 3 seeds, 93.5 to 96.9 % with 5. It
    is lowest where items say little next to seeds. A false "better" occurs in up to 4.0 and 3.3 % instead of 2.5 %.
    With 2 seeds the interval covers 88.7 to 96.5 % but is very wide. The plain percentile bootstrap over seeds and
    items covers 78 to 99 % with 3 seeds and 85 to 98 % with 5. Differences of items that are very skewed (lognormal)
    are covered in 83 % with 20 items and in 90 to 92 % with 200. Use at least three seeds, better five. With one seed
    the interval is about the two trained models only, since the variance between seeds cannot be estimated.

    With ``seed_groups`` the independent draws are these groups of seeds. The estimate is still the mean over seeds, so
    a group has the weight ``w = its seeds / all seeds``, and both components are variances of that weighted mean. The
    seed component is the variance between group means times ``sum(w ** 2)``: 1 / 3 for three groups of equal size,
    0.36 for groups of 2, 2 and 1. This assumes that all group means have the same variance, which holds if the
    adaptation causes it. If the fine-tuning causes it, large groups vary less and the interval is conservative.
    Measured coverage of zero with five seeds in three groups, where the standard deviation of adaptations on the logit
    (0.2) is twice the fine-tunings': 95.0 % with 200 items, 95.2 % with 1,000; with one adaptation for all seeds 76
    and 62 %.

    Args:
        gold: The true answer to each item: class numbers, shape (items,), or what ``scoring`` expects.
        predictions_a: For each seed, the predictions of method ``a`` for all items.
        predictions_b: The same for method ``b``; entry ``i`` of both has the same seed.
        metric: A metric or an error of the scoring.
        n: Number of bootstrap resamples.
        seed: Random seed of the resampling.
        seed_groups: For each seed, what it shares with others, such as the seed of the adaptation that several
            fine-tunings started from. The seeds of a group count as one independent draw. None: all seeds are
            independent.
        scoring: The scoring, with the groups of the items; None: single-label classification (macro_f1, micro_f1 or
            accuracy) of independent items.

    Returns:
        The difference in units of the metric or error. For a single item or group, and for up to five that all differ
        by the same amount, the interval is the whole possible range.

    Raises:
        ValueError: If the metric is unknown, the shapes do not match, or there are no items or seeds.
    """
    task = PairedPredictions(gold, predictions_a, predictions_b, metric, scoring or SingleLabel())
    return mean_paired_bootstrap([task], n, seed, seed_groups)


def mean_paired_bootstrap(
    tasks: Sequence[PairedPredictions],
    n: int = 2000,
    seed: int = 0,
    seed_groups: Sequence[Any] | None = None,
    scales: Sequence[float] | None = None,
) -> Interval:
    """Estimate the mean over tasks of the difference between two methods, each task in its own metric.

    The interval is about these tasks. Tasks that have units in common, such as one test set after training on several
    numbers of labels, see the same resample of these; others are resampled independently. Entry ``i`` of the
    predictions of all tasks is of the same seed, so the interval accounts for an adaptation that is good or bad on all
    tasks. Otherwise as :func:`paired_bootstrap`, which is the case of one task. The degrees of freedom of the items
    come from the smallest task. With ``scales``, the difference on each task is divided by its scale.

    Raises:
        ValueError: As :func:`paired_bootstrap`, or if the tasks have different numbers of seeds.
    """
    observed: Any = 0.0
    resampled: Any = 0.0
    made = [weighted_difference(*task[:5]) for task in tasks]
    sizes = [units for units, _ in made]
    for number, values in enumerate(
        resample_together(common_units(tasks, sizes), [score for _, score in made], n, seed)
    ):
        divisor = len(tasks) * (1.0 if scales is None else scales[number])
        observed = observed + made[number][1](np.ones((1, sizes[number])))[0] / divisor
        resampled = resampled + values / divisor  # (resamples, seeds)
    draws = _group_seeds(seed_groups, len(observed))
    whole, parts = (np.stack([values[..., draw].mean(-1) for draw in draws], -1) for values in (observed, resampled))
    found = student_interval(whole, parts, float(observed.mean()), min(sizes), [len(draw) for draw in draws])
    if scales is not None:
        return found
    if any(task.metric in task.scoring.errors for task in tasks):
        return replace(found, is_error=True)
    # With two seeds the interval can exceed the range of a difference of shares.
    return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))


def common_units(tasks: Sequence[PairedPredictions], sizes: Sequence[int]) -> list[list[int]]:
    """Return a number for each unit of each task, equal for units that have a name or an item in common.

    Args:
        tasks: The tasks.
        sizes: Number of units of each.
    """
    names = [task.unit_names(units) for task, units in zip(tasks, sizes, strict=True)]
    keys = [name if isinstance(name, frozenset) else frozenset([name]) for own in names for name in own]
    numbers = iter(connect(keys))
    return [list(islice(numbers, len(own))) for own in names]


def number_groups(names: Sequence[Hashable]) -> list[int]:
    """Return the number of each name, from zero without gaps in order of appearance."""
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


def connect(keys: Sequence[Collection[Hashable]]) -> list[int]:
    """Return a number for each entry, equal for entries that share a key, directly or through others."""
    nodes = {key: number for number, key in enumerate(dict.fromkeys(chain.from_iterable(keys)), len(keys))}
    ends = np.array([(place, nodes[key]) for place, own in enumerate(keys) for key in own], dtype=int).reshape(-1, 2)
    size = len(keys) + len(nodes)
    _, found = connected_components(coo_array((np.ones(len(ends)), tuple(ends.T)), (size, size)), directed=False)
    numbers: list[int] = found[: len(keys)].tolist()
    return numbers


def resample_together(
    names: Sequence[Sequence[Hashable]], scores: Sequence[WeightedDifference], n: int, seed: int
) -> list[np.ndarray]:
    """Return what is measured on ``n`` resamples of the units of several tests; units in common are drawn together.

    Args:
        names: Names of the units of each test (units,).
        scores: For each test, a function from weights of its units (resamples, units) to values (resamples, ...).
        n: Number of resamples.
        seed: Random seed; tests without common units have ``seed`` plus the place of the first of them.

    Returns:
        For each test the values (n, ...).
    """
    found: dict[int, np.ndarray] = {}
    parts = connect(names)
    for part in dict.fromkeys(parts):
        places = [place for place, own in enumerate(parts) if own == part]
        units = {
            name: number for number, name in enumerate(dict.fromkeys(n for place in places for n in names[place]))
        }
        columns = {place: [units[name] for name in names[place]] for place in places}
        blocks: dict[int, list[np.ndarray]] = {place: [] for place in places}
        for weights in bootstrap_weights(len(units), n, seed + places[0]):
            for place in places:
                blocks[place].append(scores[place](weights[:, columns[place]] if len(places) > 1 else weights))
        found |= {place: np.concatenate(values) for place, values in blocks.items()}
    return [found[place] for place in range(len(names))]


def paired_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    n: int = 2000,
    seed: int = 0,
    groups: Sequence[int] | None = None,
) -> Interval:
    """Estimate the mean difference ``a - b`` of values of the same items, such as losses of texts, with an interval.

    Args:
        a: Values, shape (items,), or (seeds, items) for several trained models.
        b: The same for the other side; a single row is compared with every row of ``a``.
        weights: Weight of each item in the mean, shape (items,), such as its number of masked tokens. None: all equal.
        n: Number of bootstrap resamples of the items.
        seed: Random seed of the resampling.
        groups: Number of the group of each item (items,), from zero without gaps; None: each item is independent.

    Returns:
        The difference in the units of the values. The components of items, or of their groups, and seeds are combined
        as in :func:`paired_bootstrap`. For a single item or group, and for up to five that all differ by the same
        amount, the interval is infinite.

    Raises:
        ValueError: If the shapes do not match, or there are no items.
    """
    difference = np.atleast_2d(np.asarray(a, dtype=float)) - np.atleast_2d(np.asarray(b, dtype=float))
    items = difference.shape[1]
    weight = np.ones(items) if weights is None else np.asarray(weights, dtype=float)
    if not items or weight.shape != (items,) or weight.sum() <= 0:
        raise ValueError("paired_difference needs at least one item, and as many weights as items.")
    weighted = (weight * difference).T  # (items, seeds)
    observed = weighted.sum(0) / weight.sum()
    weighted, weight = pool_rows(weighted, groups), pool_rows(weight, groups)
    parts = []
    for drawn in bootstrap_weights(len(weight), n, seed):
        total = drawn @ weight
        parts.append((drawn @ weighted)[total > 0] / total[total > 0, None])
    return student_interval(observed, np.concatenate(parts), float(observed.mean()), items=len(weight))


def share_interval(hits: npt.ArrayLike, groups: Sequence[int] | None = None) -> tuple[float, float]:
    """Return the 95 % interval of Wilson of a share.

    With groups the number of items is divided by the design effect: the variance of the share over groups relative to
    that over independent items (Korn and Graubard, 1998). It is not below one, and where it is not defined, since all
    or no items are hits, a group counts as one item.

    Args:
        hits: One for each item that counts, else zero (items,).
        groups: Number of the group of each item, from zero without gaps; None: items are independent.
    """
    values = np.asarray(hits, dtype=float)
    size, share = float(len(values)), float(values.mean())
    if groups is not None and (units := max(groups) + 1) < size:
        residuals = pool_rows(values - share, groups)
        variance = float((residuals**2).sum()) / size**2 * units / max(units - 1, 1)
        size = min(size, share * (1 - share) / variance) if variance > 1e-30 else units
    square = float(stats.norm.ppf(0.975)) ** 2
    centre = (share + square / (2 * size)) / (1 + square / size)
    margin = float(np.sqrt(square * (share * (1 - share) / size + square / (4 * size**2)))) / (1 + square / size)
    return centre - margin, centre + margin


def item_deviation(
    gold: Any, predictions: Sequence[Any], metric: str, scoring: Scoring, n: int = 2000, seed: int = 0
) -> float:
    """Return the standard deviation that a score has with a single test item or group, in the unit of the metric.

    It is the standard error over bootstrap resamples of the units times the square root of their number. For accuracy
    on independent items this is the standard deviation of right and wrong answers, ``sqrt(p * (1 - p))``. It depends
    neither on the number of units nor on the number of seeds.

    Args:
        gold: As in :func:`paired_bootstrap`.
        predictions: For each seed, the predictions for all items; the variances are averaged over seeds.
        metric: A metric of the scoring.
        scoring: The scoring of the task.
        n: Number of bootstrap resamples.
        seed: Random seed of the resampling.
    """
    items, score = weighted_difference(gold, predictions, None, metric, scoring)
    resampled = np.concatenate([score(weights) for weights in bootstrap_weights(items, n, seed)])
    return float(np.sqrt(items * resampled.var(axis=0, ddof=1).mean()))


def permutation_test(
    gold: Any,
    predictions_a: Sequence[Any],
    predictions_b: Sequence[Any],
    metric: str = "macro_f1",
    n: int = 2000,
    seed: int = 0,
    scoring: Scoring | None = None,
) -> float:
    """Return the two-sided p-value of "these trained models are interchangeable on every test item".

    Under the null hypothesis the predictions of all seeds of ``a`` and of all seeds of ``b`` can be swapped on each
    item, independently, without changing their joint distribution. Each item is therefore swapped with probability one
    half, for all seeds together, and the mean difference over seeds is computed again. Items of one group are not
    independent, so whole groups are swapped. The test is about these trained
    models: it ignores the variance between seeds, which the p-value of :func:`paired_bootstrap` includes.

    Args:
        gold: As in :func:`paired_bootstrap`.
        predictions_a: As in :func:`paired_bootstrap`.
        predictions_b: As in :func:`paired_bootstrap`.
        metric: A metric of the scoring.
        n: Number of random swaps; the smallest possible p-value is ``1 / (n + 1)``.
        seed: Random seed of the swaps.
        scoring: As in :func:`paired_bootstrap`.

    Returns:
        The share of swaps, the observed order included, with a difference at least as large.

    Raises:
        ValueError: If the metric is unknown, the shapes do not match, or there are no items or seeds.
    """
    rng = np.random.default_rng(seed)
    scoring = scoring or SingleLabel()
    tables = _count_tables(gold, predictions_a, predictions_b, metric, scoring)
    items = len(tables[0][0])

    def mean_difference(weights: np.ndarray) -> np.ndarray:
        """Return the difference (swaps,) if the items with weight zero are swapped."""
        swapped = 1.0 - weights
        differences = [
            scoring.value(weights @ a + swapped @ b, metric) - scoring.value(weights @ b + swapped @ a, metric)
            for a, b in tables
        ]
        return np.asarray(np.mean(differences, axis=0))

    observed = mean_difference(np.ones((1, items)))[0]
    permuted = [mean_difference((rng.random((rows, items)) >= 0.5).astype(float)) for rows in block_sizes(n, items)]
    hits = np.count_nonzero(np.abs(np.concatenate(permuted)) >= abs(observed) - 1e-12)
    return float((hits + 1) / (n + 1))


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p-value of the two-sided paired t-test over seeds, for comparison with papers that report it.

    The test ignores the variance over the test items, which all seeds share: with many seeds p becomes small even if
    other items could reverse the difference. It also ignores that seeds which start from the same adapted model are
    not independent. See :func:`paired_bootstrap`, which considers both.

    Args:
        a: The score of one method for each seed.
        b: The score of the other; entry ``i`` of both has the same seed.

    Returns:
        None for fewer than two seeds. If the difference is the same for all seeds, 1 if it is zero and else 0.

    Raises:
        ValueError: If the numbers of seeds differ.
    """
    if len(a) != len(b):
        raise ValueError("A paired test needs as many seeds of one method as of the other.")
    if len(a) < 2:
        return None
    difference = np.subtract(a, b)
    if np.ptp(difference) < 1e-15:  # scipy warns and returns NaN or zero
        return float(abs(difference.mean()) < 1e-15)
    return float(stats.ttest_rel(a, b).pvalue)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple comparisons (Holm, 1979), in the order given.

    Values below 0.05 keep the probability of any false positive at or below 5 %.
    """
    values = np.asarray(pvalues, dtype=float)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return [float(value) for value in np.minimum(stepped, 1.0)[np.argsort(order)]]


def weighted_difference(
    gold: Any, a: Sequence[Any], b: Sequence[Any] | None, metric: str, scoring: Scoring
) -> tuple[int, WeightedDifference]:
    """Return the number of units, and a function from weights of the units to the difference of each seed.

    Without ``b`` it is the score of ``a``.
    """
    _check_predictions(gold, a, a if b is None else b)
    seeds: Iterator[tuple[Any, ...]] = zip(a, strict=True) if b is None else zip(a, b, strict=True)
    made = [[scoring.resampler(gold, predicted, metric) for predicted in pair] for pair in seeds]

    def score(weights: np.ndarray) -> np.ndarray:
        return np.stack([first(weights) - sum(one(weights) for _, one in rest) for (_, first), *rest in made], axis=1)

    return made[0][0][0], score


def _check_predictions(gold: Any, a: Sequence[Any], b: Sequence[Any]) -> None:
    """Raise ValueError if the shapes do not match, or there are no items or seeds."""
    if not len(a) or len(a) != len(b) or not hasattr(gold, "__len__") or not len(gold):
        raise ValueError("Give at least one test item, and as many seeds for one method as for the other.")
    if any(not hasattr(row, "__len__") or len(row) != len(gold) for row in (*a, *b)):
        raise ValueError("Every seed needs one prediction for each test item.")


def _count_tables(
    gold: Any, a: Sequence[Any], b: Sequence[Any], metric: str, scoring: Scoring
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the counts of both methods for each seed, both of shape (units, k).

    Since counts are linear in the weights of the units, two thousand resamples are one matrix product.

    Raises:
        ValueError: If the metric is unknown, the shapes do not match, or there are no items or seeds.
    """
    _check_predictions(gold, a, b)
    pairs = []
    for x, y in zip(a, b, strict=True):
        tables = [scoring.counts(gold, predicted, metric) for predicted in (x, y)]
        width = max(table.shape[1] for table in tables)
        first, second = (np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables)
        pairs.append((first, second))
    return pairs


def block_sizes(n: int, items: int) -> Iterator[int]:
    """Split ``n`` resamples into blocks that fit in memory."""
    size = max(1, MAX_BLOCK_ELEMENTS // items)
    for start in range(0, n, size):
        yield min(size, n - start)


def _group_seeds(groups: Sequence[Any] | None, seeds: int) -> list[list[int]]:
    """Return the seeds of each independent draw: of each group if there are at least two groups, else single seeds."""
    if groups is None or len(set(groups)) < 2:
        return [[seed] for seed in range(seeds)]
    if len(groups) != seeds:
        raise ValueError("Give one group for each seed.")
    return [[seed for seed in range(seeds) if groups[seed] == name] for name in dict.fromkeys(groups)]


def _weighted_mean(values: np.ndarray, weights: Sequence[int]) -> np.ndarray:
    """Average over the last axis; equal weights give exactly the unweighted mean."""
    return np.asarray(values.mean(-1) if len(set(weights)) == 1 else values @ (np.asarray(weights) / sum(weights)))


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval (Student) of the mean of two or more independent values, such as one per adaptation."""
    margin = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - margin, float(values.mean()) + margin


def student_interval(
    observed: np.ndarray, resampled: np.ndarray, estimate: float, items: int, sizes: Sequence[int] | None = None
) -> Interval:
    """Combine the variance over items and over seeds into an interval of Student's t.

    Args:
        observed: The difference of each draw (a seed or a group of seeds), shape (draws,).
        resampled: The same on resamples of the items, shape (n, draws).
        estimate: The difference to report: the mean of the draws, weighted by ``sizes``.
        items: Number of units: of items, or of groups of items that are not independent.
        sizes: Number of seeds of each draw; None: one each.
    """
    if items < 2:  # all resamples are equal, which says nothing about the variance
        return Interval(estimate, -np.inf, np.inf, 1.0)
    draws, sizes = len(observed), sizes or [1] * len(observed)
    squares = [size * size for size in sizes]
    mean_variance = float(_weighted_mean(resampled, sizes).var(ddof=1)) * items / (items - 1)
    seed_variance, item_variance = 0.0, mean_variance
    if draws > 1:
        effective_draws = sum(sizes) ** 2 / sum(squares)  # 1 / sum(w ** 2), the number of draws if all are equal
        seed_variance = float(observed.var(ddof=1)) / effective_draws
        draw_variance = float(_weighted_mean(resampled.var(axis=0, ddof=1), squares)) * items / (items - 1)
        # The interaction of seed and item (an item that one seed gets right and another does not) is in both
        # components. With an item effect of variance v common to all draws and an interaction of variance c,
        # mean_variance is v + c * sum(w ** 2), and draw_variance is v + c.
        interaction = max(0.0, draw_variance - mean_variance) / (effective_draws - 1)
        item_variance = max(mean_variance - interaction, mean_variance - seed_variance, 0.0)
    variance = item_variance + seed_variance
    if variance < 1e-30:  # all items agree: p is from the permutation test, not significant for up to five items
        p = 1.0 if abs(estimate) < 1e-15 else 2.0 ** (1 - items)
        margin = np.inf if 0.05 <= p < 1 else 0.0
        return Interval(estimate, estimate - margin, estimate + margin, p, error=margin)
    error = float(np.sqrt(variance))
    freedom = variance**2 / (item_variance**2 / (items - 1) + seed_variance**2 / max(draws - 1, 1))
    margin = float(stats.t.ppf(0.975, freedom)) * error
    p = float(2 * stats.t.sf(abs(estimate) / error, freedom))
    return Interval(estimate, estimate - margin, estimate + margin, p, error=error, freedom=freedom)
