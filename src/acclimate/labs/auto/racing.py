"""The race: which entrants are dropped after a rung, and how far the gain of the leader is flattered by the choice.

Decisions come from paired differences per item on the tune part of dev. A wrong decision costs some of the gain, and
never the validity of the claim, which has its own data and seeds (:mod:`acclimate.labs.auto.claim`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from acclimate.evaluation.dips import dip_is_over
from acclimate.evaluation.significance import PairedPredictions, common_units

LEVEL = 0.1
"""Probability that the best entrant is dropped by a test in any rung of a race."""
MAX_WEIGHTS = 4_000_000
"""Elements of a block of leave-one-out weights, of shape (left out, items): 32 MB of float64."""

Reason = Literal["leader", "kept", "always", "dip", "worse", "budget", "forgetful"]


@dataclass(frozen=True, eq=False)
class RungResult:
    """Result of an entrant in a rung.

    Attributes:
        name: Name of the entrant.
        scores: Score of each item on tune, higher is better, shape (seeds, items): see :func:`item_scores`.
        curves: Losses on held-out text of each adaptation, measured from the base model to its end; none for the base
            model.
    """

    name: str
    scores: np.ndarray
    curves: Sequence[Sequence[float]] = ()

    @property
    def score(self) -> float:
        """The mean over seeds and items."""
        return float(self.scores.mean())


@dataclass(frozen=True)
class Decision:
    """Decision of a rung about an entrant.

    Attributes:
        name: Name of the entrant.
        score: Its score on tune, the mean over seeds.
        behind: The score of the leader minus this one.
        p: One-sided p-value of "not worse than the leader", adjusted for the number of entrants; 1 for the leader.
        reason: Why it goes on (``"leader"``, ``"kept"``: no difference shown, ``"always"``: base or cheapest,
            ``"dip"``: its curve is still in a dip), or not (``"worse"``, ``"budget"``: not shown to be worse, but the
            budget does not pay for it; ``"forgetful"``: it lost more general text than the limit, whatever its score).
    """

    name: str
    score: float
    behind: float
    p: float
    reason: Reason

    @property
    def goes_on(self) -> bool:
        """Whether the entrant takes part in the next rung."""
        return self.reason not in ("worse", "budget", "forgetful")


def item_scores(tasks: Sequence[PairedPredictions]) -> np.ndarray:
    """Return one number per item whose mean is the score ``a`` of a model, for any metric and for several tasks.

    For a mean of scores per item, such as accuracy, these are the scores. For others, such as macro-F1, an item has
    ``score + (n - 1) * (mean of the leave-one-out scores - score without the item)``: the pseudo-values of the
    jackknife (Tukey, 1958), moved so that their mean is the score itself. Their variance divided by the number of
    items is the jackknife variance of the score. The items of several tasks are joined and scaled such that their
    mean and variance are the ones of the tasks' mean score; items that tasks have in common are joined to one. Where
    items are grouped, such as the sentences of documents, "items" are the groups throughout the race.

    Args:
        tasks: The predictions on each task; ``b`` is not read.

    Returns:
        Shape (seeds, items), the items of the tasks one after the other.

    Raises:
        ValueError: If there is no task, or tasks have different numbers of seeds.
    """
    found = [np.stack([_influences(task, predicted) for predicted in task.a]) for task in tasks]
    if not found or len({len(scores) for scores in found}) > 1:
        raise ValueError("item_scores needs at least one task, and the same seeds for all.")
    if len(found) == 1:
        return found[0]
    units = common_units(tasks, [scores.shape[1] for scores in found])
    count = len(set(itertools.chain(*units)))  # the numbers have no gaps
    joined = np.repeat(np.mean([scores.mean(1) for scores in found], axis=0)[:, None], count, axis=1)
    for scores, own in zip(found, units, strict=True):
        weight = count / (len(found) * scores.shape[1])
        np.add.at(joined.T, np.array(own), weight * (scores - scores.mean(1, keepdims=True)).T)
    return joined


def _influences(task: PairedPredictions, predicted: Any) -> np.ndarray:
    """Return the moved pseudo-values of the predictions of one seed, shape (items,)."""
    items, score = task.scoring.resampler(task.gold, predicted, task.metric)
    whole = float(score(np.ones((1, items)))[0])
    if items < 2:
        return np.full(items, whole)

    def leave_out() -> Iterator[np.ndarray]:
        size = max(1, MAX_WEIGHTS // items)
        for start in range(0, items, size):
            weights = np.ones((min(size, items - start), items))
            weights[np.arange(len(weights)), start + np.arange(len(weights))] = 0.0
            yield score(weights)

    without = np.concatenate(list(leave_out()))
    return np.asarray(whole + (items - 1) * (without.mean() - without))


def decide(
    results: Sequence[RungResult],
    *,
    always: Collection[str],
    decisions: int,
    room: int | None = None,
    level: float = LEVEL,
) -> list[Decision]:
    """Decide which entrants go on after a rung.

    An entrant is dropped if it is worse than the leader of the rung: a one-sided paired test at ``level / decisions /
    (entrants - 1)``. By Bonferroni over the other entrants, each of which may be the leader, and over the rungs that
    decide, the probability that the best entrant is ever dropped by a test is at most ``level``. This is the
    comparison with the best of Hsu (1984) and the race of Maron and Moore (1994) with a t-test, as in Birattari et al.
    (2002). The level is more lenient than the claim's, because the errors differ: dropping the best loses what
    it is ahead of the leader, of which the items could show little, while keeping a bad one costs its share of the
    budget for certain.

    The variance of a difference has a component of items and one of seeds. The component of seeds comes from all
    entrants together: they are scored on the same seeds, and two or three seeds alone would say nothing. With one seed
    the test is about the trained models, and the chance of an adaptation counts as its merit.

    Entrants in a dip, see :func:`acclimate.evaluation.dips.dip_is_over`, are not dropped as worse, because their
    score
    is not yet about what they can reach. If the budget does not pay for all that are left, the lowest scores leave
    first, those in a dip last.

    Args:
        results: The entrants of this rung, with the base model; the same seeds and items for all.
        always: Names of entrants that reach the end in any case: the base model and the cheapest.
        decisions: Number of rungs of the race after which entrants can be dropped, this one included.
        room: Number of entrants that the budget pays for in the next rung, those in ``always`` included; None: all.
        level: Probability that the best entrant is ever dropped by a test.

    Returns:
        The decisions, the highest score first.

    Raises:
        ValueError: If there are no results, or their shapes differ.
    """
    scores = _stack([result.scores for result in results])
    order = sorted(range(len(results)), key=lambda place: -results[place].score)  # stable: ties in the given order
    first = order[0]
    tests = {place: _p_worse(scores, first, place) for place in order[1:]}
    made: dict[int, Reason] = {}
    adjusted = {first: 1.0} | {place: min(1.0, p * len(tests)) for place, p in tests.items()}
    for place in order:
        result = results[place]
        if place == first:
            made[place] = "leader"
        elif result.name in always:
            made[place] = "always"
        elif not all(dip_is_over(curve) for curve in result.curves):
            made[place] = "dip"
        else:
            made[place] = "worse" if adjusted[place] <= level / decisions else "kept"
    if room is not None:
        left = [place for place in order if made[place] != "worse"]
        leaving = [place for reason in ("kept", "dip") for place in reversed(left) if made[place] == reason]
        for place in leaving[: max(0, len(left) - room)]:
            made[place] = "budget"
    lead = results[first].score
    return [
        Decision(results[place].name, results[place].score, lead - results[place].score, adjusted[place], made[place])
        for place in order
    ]


def shrunken_gain(gains: Sequence[np.ndarray], winner: int) -> float:
    """Return the gain of the winner on tune, shrunken for having been chosen as the highest of several.

    The gains of the entrants are shrunken towards their mean by the share of their spread that items and seeds alone
    explain: empirical Bayes with one variance (Efron and Morris, 1973), the spread estimated by its moments, which
    unlike James and Stein's constant is defined for two entrants. What all entrants share, such as a base model that
    scores low on these items by chance, cancels in the spread and stays in the mean, which no choice has flattered.

    Args:
        gains: For each entrant except for the base model, its item scores minus the base model's in the last
            rung that it reached, shape (seeds, items), the same for all.
        winner: Number of the winner.

    Raises:
        ValueError: If there are no gains, or their shapes differ.
    """
    stacked = _stack(gains)
    means = stacked.mean((1, 2))
    entrants = len(stacked)
    if entrants < 2:
        return float(means[0])
    spread = float(((means - means.mean()) ** 2).sum()) / (entrants - 1)
    pairs = [_variance(stacked, a, b)[0] / 2 for a in range(entrants) for b in range(a)]
    noise = float(np.mean(pairs))
    kept = 0.0 if spread <= noise else 1.0 - noise / spread
    return float(means.mean() + kept * (means[winner] - means.mean()))


def _stack(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the scores of all entrants, shape (entrants, seeds, items).

    Raises:
        ValueError: If there are none, or their shapes differ.
    """
    if (
        not len(scores)
        or len({np.shape(one) for one in scores}) > 1
        or np.ndim(scores[0]) != 2
        or not np.size(scores[0])
    ):
        raise ValueError("All entrants need scores of the same seeds and items, at least one of each.")
    return np.stack([np.asarray(one, dtype=float) for one in scores])


def _p_worse(scores: np.ndarray, leader: int, other: int) -> float:
    """Return the one-sided p-value of "the other is not worse than the leader"."""
    items = scores.shape[2]
    difference = float((scores[leader] - scores[other]).mean())
    variance, freedom = _variance(scores, leader, other)
    if variance < 1e-30:  # all items agree: a sign test
        return 1.0 if difference < 1e-15 else 0.5**items
    return float(stats.t.sf(difference / np.sqrt(variance), freedom))


def _variance(scores: np.ndarray, one: int, other: int) -> tuple[float, float]:
    """Return the variance of the mean difference of two entrants, and its degrees of freedom (Satterthwaite).

    As in :mod:`acclimate.evaluation.significance`, but the variance between seeds is estimated from all entrants: the
    residual of the two-way layout of entrants and seeds, with ``(entrants - 1) * (seeds - 1)`` degrees of freedom.

    Args:
        scores: Shape (entrants, seeds, items).
        one: Number of the first entrant.
        other: Number of the second.
    """
    entrants, seeds, items = scores.shape
    if items < 2:
        return np.inf, 1.0
    difference = scores[one] - scores[other]
    item_variance, seed_variance = float(difference.mean(0).var(ddof=1)) / items, 0.0
    if seeds > 1:
        means = scores.mean(2)
        residual = means - means.mean(0) - means.mean(1, keepdims=True) + means.mean()
        seed_variance = 2 * float((residual**2).sum()) / ((entrants - 1) * (seeds - 1)) / seeds
        # The interaction of seed and item is in both components and counts once.
        per_seed = float(difference.var(axis=1, ddof=1).mean()) / items
        interaction = max(0.0, per_seed - item_variance) / (seeds - 1)
        item_variance = max(item_variance - interaction, item_variance - seed_variance, 0.0)
    variance = item_variance + seed_variance
    if variance < 1e-30:
        return 0.0, 1.0
    parts = item_variance**2 / (items - 1) + seed_variance**2 / max(1, (entrants - 1) * (seeds - 1))
    return variance, variance**2 / parts
