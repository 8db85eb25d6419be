"""Differences between the mean scores of finished runs, with intervals over items and runs, and what more would show.

The other statistics (:mod:`acclimate.evaluation.significance`) resample the predictions of a study, for metrics such
as F1 that are no means over items. Here each run has one score per item, so the variance of the mean can be written
down: it is free of resampling noise, and thousands of comparisons take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from acclimate.evaluation.scoring import pool_rows
from acclimate.evaluation.significance import Interval

MIN_UNITS = 10
"""With fewer items or groups there is no verdict."""
FEW_UNITS = 30
"""Below this number of items or groups an interval is called uncertain."""
MAX_SHARE = 0.5
"""A group with more than this share of the items decides alone, so there is no verdict."""
POWER = 0.8
"""Probability with which a true difference is to be seen."""
MAX_RUNS = 1_000
MAX_UNITS = 10**9
_NONE = 1e-30
"""Variances below are rounding errors."""
_ROUNDING = 1e-13
"""Standard errors of this share of the largest score, too."""


@dataclass(frozen=True)
class Side:
    """Variance of the mean over the runs of one side, or over pairs of runs.

    Attributes:
        runs: Number of runs or pairs, at least two.
        variance: Variance of the mean, over other runs on the same items.
        interaction: Part of it that more items would reduce: items that one run gets right and another does not.
    """

    runs: int
    variance: float
    interaction: float


@dataclass(frozen=True)
class RunDifference:
    """The difference of the mean scores of two sides.

    Attributes:
        interval: The difference with its interval and p-value.
        units: Number of independent units: of items, or of their groups.
        largest: Share of the weight of all items that the largest unit has.
        items: Variance of the difference over other items, for the same runs, without the interaction.
        freedom: Degrees of freedom of that variance.
        sides: Variance over other runs of each side that has several runs, or of the pairs.
        varies: Whether the difference varies over units or runs; if not, no variance is known.
    """

    interval: Interval
    units: int
    largest: float
    items: float
    freedom: float
    sides: tuple[Side, ...]
    varies: bool = True

    @property
    def has_enough_units(self) -> bool:
        """Whether there are enough units for a verdict, none of which decides alone."""
        return self.units >= MIN_UNITS and self.largest <= MAX_SHARE

    def can_show(self, effect: float, units: float = 1.0, runs: float = 1.0) -> bool:
        """Return whether a true difference would be seen with a probability of :data:`POWER`.

        Args:
            effect: The true difference.
            units: Number of units, as a multiple of the present one.
            runs: Number of runs of each side that has several, as a multiple of the present one.
        """
        between = [
            (
                (max(side.variance - side.interaction, 0.0) + side.interaction / units) / runs,
                max(side.runs * runs - 1, 1.0),
            )
            for side in self.sides
        ]
        parts = [(self.items / units, max(self.freedom * units, 1.0)), *_pooled(between)]
        return _margin(parts, 0.975) + _margin(parts, POWER) <= abs(effect)

    def units_needed(self, effect: float) -> int | None:
        """Return the units that are needed to see a difference with the present runs; None if no number suffices."""
        if not self.varies:
            return None
        return _smallest(lambda units: self.can_show(effect, units=units / self.units), MIN_UNITS, MAX_UNITS)

    def runs_needed(self, effect: float) -> int | None:
        """Return the runs per side that are needed with the present items; None if no number suffices.

        It is also None if no side has several runs, so that the variance between runs is unknown.
        """
        if not self.sides:
            return None
        present = min(side.runs for side in self.sides)
        return _smallest(lambda runs: self.can_show(effect, runs=runs / present), 2, MAX_RUNS)


def difference_of_runs(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    *,
    paired: bool = False,
    is_error: bool = False,
    limit: float | None = None,
) -> RunDifference:
    """Estimate the difference between the mean scores of two sides on the same items, first minus second.

    The items component of the variance is a jackknife of the difference of the sides' mean scores per item, which
    leaves out one unit at a time: an item, or a group of items that are not independent. For single items and for
    groups of equal size it is the usual (clustered) variance of a mean. Its degrees of freedom are the effective
    number of units, ``1 / sum(share ** 2)``, minus one: ten groups of 1 to 50 items count as four to seven. They are
    also less than the number of units on which the sides differ, since the others say nothing about its sign.

    The runs component is, for each side with several runs, the variance of the mean over these. If ``paired``, it is
    the variance over pairs of runs. The interaction of run and item is in both components and is counted once. A side
    with one run is this one model; the interval then says nothing about other trainings of it.

    The margin of the interval is the one of Cochran and Cox (1957) for a sum of variances: each component has the
    quantile of Student's t for its own degrees of freedom, weighted by its variance; those of the runs of two
    independent sides are Welch's. Satterthwaite's degrees of freedom for the whole sum are too high where few runs
    agree by chance: with two pairs of runs 11 % of true zeros were excluded. docs/dev/judge.md has measured rates.

    If each side has one run, and the scores are zeros and ones of independent items with equal weights, the p-value is
    that of McNemar's exact test, and the interval is the wider of Tango's score interval (1998) and the exact interval
    of Clopper and Pearson for the items on which the models differ. It excludes zero exactly if p is below 0.05.

    If no variance is seen, since all units differ by the same amount ``d``, then with a probability of 97.5 % at most
    the share ``q = 1 - 0.025 ** (1 / units)`` of other units differs by something else, at most by ``limit``: the ends
    are ``(1 - q) * d`` minus and plus ``q * limit``, and without a limit there is no interval.

    Args:
        first: Scores (items,) of one run, or (runs, items).
        second: The same for the other side, with any number of runs.
        weights: Weight of each item in the mean, shape (items,), such as its bytes. None: all equal.
        groups: Number of the group of each item (items,), from zero without gaps. None: items are independent.
        paired: Run ``i`` of both sides has the same seed.
        is_error: Whether lower scores are better.
        limit: Largest difference that an item can have, such as 1 between shares. None: it is not known.

    Raises:
        ValueError: If the shapes do not match, or there are no items.
    """
    a, b = (np.atleast_2d(np.asarray(values, dtype=float)) for values in (first, second))
    weight = np.ones(a.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    if a.shape[1] != b.shape[1] or weight.shape != a.shape[1:] or weight.sum() <= 0 or (paired and len(a) != len(b)):
        raise ValueError("Give scores of the same items, at least one, and paired runs in equal numbers.")
    share, place = weight / weight.sum(), None if groups is None else np.asarray(groups)
    mass = pool_rows(share, place)
    units, largest = len(mass), float(mass.max())
    difference = a.mean(0) - b.mean(0)
    estimate = float(difference @ share)
    if units < 2:
        nothing = Interval(estimate, -np.inf, np.inf, 1.0, is_error)
        return RunDifference(nothing, units, largest, np.inf, 1.0, ())
    items = _variance(difference[None], share, mass, place)
    added = np.abs(pool_rows(share * difference, place))
    differing = float(np.count_nonzero(added > 1e-12 * added.max()))
    freedom = max(min(1 / float((mass**2).sum()), differing) - 1, 1.0)
    several = [runs for runs in ([a - b] if paired else [a, b]) if len(runs) > 1]
    sides = tuple(_spread(runs, share, mass, place) for runs in several)
    between = sum(side.variance for side in sides)
    items = max(items - sum(side.interaction for side in sides), items - between, 0.0)
    parts = [(items, freedom), *_pooled([(side.variance, side.runs - 1.0) for side in sides])]
    total, scale = sum(variance for variance, _ in parts), max(np.abs(a).max(), np.abs(b).max())
    varies = bool(total > max(_NONE, (_ROUNDING * scale) ** 2))
    if len(a) == len(b) == 1 and groups is None and np.ptp(weight) == 0 and _is_binary(a, b):
        interval = _exact(difference)
    else:
        interval = _combine(estimate, parts) if varies else _constant(estimate, units, limit)
    return RunDifference(replace(interval, is_error=is_error), units, largest, items, freedom, sides, varies)


def residuals(values: np.ndarray, share: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return what each unit adds to the deviation of a mean, shape (units, runs).

    Args:
        values: Scores (runs, items).
        share: Weight of each item (items,); they sum to one.
        groups: As in :func:`difference_of_runs`.
    """
    return pool_rows((share * (values - (values @ share)[:, None])).T, groups)


def _variance(values: np.ndarray, share: np.ndarray, mass: np.ndarray, groups: np.ndarray | None) -> float:
    """Return the jackknife variance over units of the means of runs, summed over runs."""
    # Without a unit the mean changes by its residual divided by what is left of the weight.
    changes = residuals(values, share, groups) / np.maximum(1 - mass, 1e-12)[:, None]
    return float((changes**2).sum()) * (len(mass) - 1) / len(mass)


def _spread(runs: np.ndarray, share: np.ndarray, mass: np.ndarray, groups: np.ndarray | None) -> Side:
    """Return the variance of the mean over runs (runs, items), and the interaction in it."""
    size = len(runs)
    interaction = _variance(runs - runs.mean(0), share, mass, groups) / (size - 1) / size
    return Side(size, float((runs @ share).var(ddof=1)) / size, interaction)


def _pooled(sides: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the variance over runs of both sides, with Welch's degrees of freedom; none without such sides."""
    total = sum(variance for variance, _ in sides)
    squares = sum(variance**2 / freedom for variance, freedom in sides)
    return [(total, total**2 / squares)] if total > _NONE else []


def _margin(parts: Sequence[tuple[float, float]], level: float) -> float:
    """Return the margin of Cochran and Cox for a sum of variances, each with its degrees of freedom."""
    total = sum(variance for variance, _ in parts)
    weighted = sum(variance * float(special.stdtrit(freedom, level)) for variance, freedom in parts)
    return weighted / total**0.5 if total > _NONE else 0.0


def _constant(estimate: float, units: int, limit: float | None) -> Interval:
    """Return the interval of a difference that all units have."""
    if limit is None:
        return Interval(estimate, -np.inf, np.inf, 1.0, error=np.inf)
    same = 0.025 ** (1 / units)
    margin = (1 - same) * limit
    p = min(1.0, 2 * (limit / (limit + abs(estimate))) ** units)
    return Interval(estimate, same * estimate - margin, same * estimate + margin, p, error=margin)


def _combine(estimate: float, parts: Sequence[tuple[float, float]]) -> Interval:
    """Return the interval of Student's t for a sum of variances, each with its degrees of freedom."""
    total = sum(variance for variance, _ in parts)
    error, margin = float(total**0.5), _margin(parts, 0.975)
    freedom = _freedom(margin / error)
    p = float(2 * special.stdtr(freedom, -abs(estimate) / error))
    return Interval(estimate, estimate - margin, estimate + margin, p, error=error, freedom=freedom)


def _freedom(quantile: float) -> float:
    """Return the degrees of freedom for which Student's t has this 97.5 % quantile."""
    if quantile <= special.stdtrit(1e9, 0.975):
        return float(np.inf)
    return float(optimize.brentq(lambda freedom: special.stdtrit(freedom, 0.975) - quantile, 0.9, 1e9, rtol=1e-12))


def _is_binary(*scores: np.ndarray) -> bool:
    return all(bool(np.isin(values, (0, 1)).all()) for values in scores)


def _exact(difference: np.ndarray) -> Interval:
    """Return the p-value of McNemar's exact test, and an interval that agrees with it.

    Args:
        difference: Difference of each item (items,): -1, 0 or 1.
    """
    items, up, down = len(difference), int((difference > 0).sum()), int((difference < 0).sum())
    changed, estimate = up + down, (up - down) / len(difference)
    p = min(1.0, 2 * float(special.bdtr(min(up, down), changed, 0.5))) if changed else 1.0
    # Clopper and Pearson for the share of the changed items that went up.
    low = float(special.betaincinv(up, down + 1, 0.025)) if up else 0.0
    high = float(special.betaincinv(up + 1, down, 0.975)) if down else 1.0
    ends = [changed / items * (2 * end - 1) for end in (low, high)]
    score = [-_tango(down, up, items), _tango(up, down, items)]
    error = float(np.std(difference, ddof=1)) / items**0.5 if items > 1 else np.inf
    return Interval(estimate, min(ends[0], score[0]), max(ends[1], score[1]), p, error=error)


def _tango(up: int, down: int, items: int) -> float:
    """Return the upper end of Tango's score interval of ``(up - down) / items``."""
    estimate, square = (up - down) / items, float(special.ndtri(0.975)) ** 2

    def excess(true: float) -> float:
        """Return how much the squared score statistic exceeds its quantile, times the variance."""
        middle = -up - down + (2 * items - up + down) * true
        # The maximum-likelihood share of items that went down, if the difference is ``true``.
        root = max(middle**2 + 8 * items * down * true * (1 - true), 0.0) ** 0.5
        least = max((root - middle) / (4 * items), 0.0)
        return items * (estimate - true) ** 2 - square * (2 * least + true * (1 - true))

    return float(optimize.brentq(excess, estimate + 1e-12, 1.0)) if estimate < 1 else 1.0


def _smallest(suffices: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number from ``low`` to ``high`` that suffices, given that larger ones do, too."""
    if not suffices(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return low
