"""The claim: one interval and one verdict about the winner of a race, on items and seeds not used for selection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from scipy import stats

from acclimate.base.records import Record
from acclimate.data.documents import count_units
from acclimate.evaluation.significance import Interval, PairedPredictions, mean_paired_bootstrap, paired_difference

LEVEL = 0.05
"""Probability that any claim on the same items is of a gain that does not exist, and that any overlooks a broken limit
of forgetting."""
FIRST_SHARE = 0.8
"""Share of :data:`LEVEL` that the first claim spends; the later ones share the rest."""
MIN_SEEDS = 3


class Bound(Record):
    """An estimate with its one-sided confidence bound: the lowest gain, or the highest loss, that the data allow."""

    estimate: float
    bound: float


class ClaimResult(Record):
    """The claim about the winner.

    Attributes:
        winner: Name of the entrant.
        gain: Its score minus the base model's, with the lower bound.
        forgotten: Its loss on general text minus the base model's, in nats per token, with the upper bound; None
            if there is no general text.
        limit: The highest loss of general text that the user accepts; None for any.
        seeds: Number of adaptations and fine-tunings of the winner, and of fine-tunings of the base model.
        item_count: Number of confirming items, of all tasks.
        unit_count: Number of groups of these, such as documents, of which each counts once; None for single items.
        unit_name: What such a group is.
        reads: How often the confirming items have been read, this time included.
        confidence: One-sided confidence of the bounds.
        collapsed: Trainings of the winner that collapsed in the race, which the gain counts.
    """

    winner: str
    gain: Bound
    forgotten: Bound | None = None
    limit: float | None = None
    seeds: int
    item_count: int
    unit_count: int | None = None
    unit_name: str = "document"
    reads: int = 1
    confidence: float
    collapsed: int = 0

    @property
    def evidence(self) -> str:
        """Size of the evidence for the claim, such as "191 documents (5,716 items)"."""
        return count_units(self.item_count, self.unit_count, self.unit_name)

    def numbers(self) -> dict[str, float]:
        """Return the gain and what was forgotten with their bounds, for experiment trackers."""
        found = {"gain": self.gain, **({} if self.forgotten is None else {"forgotten": self.forgotten})}
        ends = {f"{name}/bound": one.bound for name, one in found.items()}
        return {**{name: one.estimate for name, one in found.items()}, **ends, "verdict": float(self.helps)}

    @property
    def helps(self) -> bool:
        """Whether the gain is above zero with the confidence of the claim."""
        return self.gain.bound > 0

    @property
    def keeps_limit(self) -> bool:
        """Whether the loss of general text is within the limit with the same confidence; True without a limit."""
        return self.limit is None or (self.forgotten is not None and self.forgotten.bound <= self.limit)

    @property
    def holds(self) -> bool:
        """Whether the winner is returned; else it is the base model."""
        return self.helps and self.keeps_limit


@dataclass(frozen=True, eq=False)
class GeneralLosses:
    """Losses of general text.

    Attributes:
        winner: Loss of each text in nats per token, shape (seeds, texts).
        base: The same of the base model, shape (texts,); its general text is read before any fine-tuning.
        tokens: Number of tokens of each text that the losses are means of, shape (texts,).
        limit: The highest increase that the user accepts; None for any.
    """

    winner: npt.ArrayLike
    base: npt.ArrayLike
    tokens: npt.ArrayLike | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Collapses:
    """Trainings of an entrant in the race.

    Attributes:
        trainings: Number of adaptations with their fine-tunings.
        collapsed: Number of these whose score is far below the base model's.
        lost: Sum of the scores that these are below it.
    """

    trainings: int = 0
    collapsed: int = 0
    lost: float = 0.0


def spend_level(reads: int) -> float:
    """Return the level of the claim that reads the same items for the so many-th time; all levels add up to ``LEVEL``.

    By Bonferroni's inequality, the bounds of all claims then hold together with a probability of at least 95 %. The
    first claim gets most of it, since nearly all items are read once; 1 / 2 + 1 / 6 + 1 / 12 + ... is one.
    """
    return LEVEL * FIRST_SHARE if reads == 1 else LEVEL * (1 - FIRST_SHARE) / (reads * (reads - 1))


def make_claim(
    winner: str,
    tasks: Sequence[PairedPredictions],
    *,
    seeds: Sequence[int],
    used_seeds: Collection[int],
    reads: int = 1,
    general: GeneralLosses | None = None,
    groups: Sequence[Any] | None = None,
    collapses: Collapses | None = None,
    n: int = 2000,
) -> ClaimResult:
    """Compare the winner of a race with the base model on the confirming items.

    Both bounds are one-sided. The claim has one direction: whether the winner is worse or no better, the base model is
    returned. So the 5 % of :data:`LEVEL` are all spent on the error that costs something, and the bound reads as a
    promise: a gain of at least so much. The bound of the loss on general text makes the limit one as well
    (non-inferiority): a loss that might be above the limit is not within it. Both conditions have to hold, so neither
    level needs a correction for the other (intersection-union test, Berger, 1982).

    The same items may be read again, and nobody knows how often. So the first claim spends 4 % and the k-th one, from
    the second on, 1 % / (k (k - 1)): however many there are, they spend at most 5 % together (:func:`spend_level`).

    Trainings that collapse are rare, so that three fresh seeds often show none. Collapses in the race count as
    well: the gain is the mean over all trainings, of which the race had so many collapsed ones (:class:`Collapses`).
    Nothing is known about collapses that neither the race nor the claim has seen.

    The items and seeds were not used for selection. New items alone would not do: the runs that won the race also
    have the more favorable seeds, which other items show again.

    Args:
        winner: Name of the entrant.
        tasks: The predictions of the winner (``a``) and of the base model (``b``) on each task, entry ``i`` of both
            fine-tuned with seed ``i``, in metrics of which higher is better. The gain is the mean over tasks.
        seeds: The seeds of the trainings.
        used_seeds: The seeds of the race.
        reads: How often the items have been read, this time included, as
            :func:`acclimate.labs.auto.confirming.count_reads` returns it.
        general: The losses of both on general text.
        groups: For each seed, the seed of the adaptation that the fine-tuning started from, if several share one.
        collapses: Trainings of the winner in the race, and those that collapsed.
        n: Number of bootstrap resamples of the items.

    Returns:
        The claim.

    Raises:
        ValueError: If there are fewer than :data:`MIN_SEEDS` seeds (or groups), seeds that the race has used, or a
            metric of which lower is better.
    """
    independent = len(set(seeds if groups is None else groups))
    if independent < MIN_SEEDS or any(len(task.a) != len(seeds) for task in tasks):
        raise ValueError(f"A claim needs {MIN_SEEDS} seeds at least, of the winner and of the base model.")
    if reused := sorted(set(seeds) & set(used_seeds)):
        raise ValueError(f"A claim needs seeds that the race has not used; it has used {reused}.")
    if any(task.metric in task.scoring.errors for task in tasks):
        raise ValueError("A claim needs metrics of which higher is better.")
    level = spend_level(reads)
    grouped = [task.scoring for task in tasks if task.scoring.groups is not None]
    units = sum(len(task.gold) if task.scoring.groups is None else max(task.scoring.groups) + 1 for task in tasks)
    found = mean_paired_bootstrap(tasks, n, seed_groups=groups)
    gain, known = _bound(found, level), collapses or Collapses()
    if known.collapsed:
        total = known.trainings + len(seeds)
        kept, lost = 1 - known.collapsed / total, known.lost / total
        gain = Bound(estimate=kept * gain.estimate - lost, bound=kept * gain.bound - lost)
    forgotten = None
    if general is not None:
        forgotten = _bound(paired_difference(general.winner, general.base, general.tokens, n), 1 - level)
    return ClaimResult(
        winner=winner,
        gain=gain,
        forgotten=forgotten,
        limit=None if general is None else general.limit,
        seeds=len(seeds),
        item_count=sum(len(task.gold) for task in tasks),
        unit_count=units if grouped else None,
        unit_name="/".join(dict.fromkeys(scoring.group_name for scoring in grouped)) or "document",
        reads=reads,
        confidence=1 - level,
        collapsed=known.collapsed,
    )


def _bound(found: Interval, quantile: float) -> Bound:
    """Return the estimate with the end of the interval at a quantile of Student's t."""
    end = found.difference + float(stats.t.ppf(quantile, found.freedom)) * found.error
    return Bound(estimate=found.difference, bound=end)
