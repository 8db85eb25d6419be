"""Metrics of entities: strict F1 of spans with their types, lenient variants, and what kind of errors there are.

An entity is correct if its start, end and type match a gold entity, as in conlleval (Tjong Kim Sang and De
Meulder, CoNLL 2003). ``overlap_f1`` asks only for a common part with an entity of the same type, and ``boundary_f1``
only for the same start and end, like "type" and "exact" of SemEval 2013, task 9. The first shows what wrong boundaries
cost, the second what wrong types cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from acclimate.evaluation.scoring import Scoring, mean_f1, pooled_f1, register, scores_per_class

NAMES = ("micro_f1", "macro_f1", "unseen_f1", "overlap_f1", "boundary_f1")
ERRORS = ("correct", "boundary", "type", "boundary and type", "missed", "spurious")

Entity = Sequence[int]
"""Start, end (exclusive), number of the type, and 1 if train has an entity of this text and type, else 0."""


@register("entities")
@dataclass(frozen=True)
class EntityScoring(Scoring):
    """Entities; gold and predicted are lists of :data:`Entity`, sorted and without overlaps.

    ``micro_f1`` pools all entities, ``macro_f1`` is the mean over the types that occur in gold or predictions. Both
    are strict. ``unseen_f1`` is the strict F1 of the entities that do not occur in train; it is available if there are
    any in gold.
    """

    hub_task: ClassVar[tuple[str, str]] = ("token-classification", "Named Entity Recognition")
    classes: int
    """Number of types."""
    has_unseen: bool = True
    """Whether gold has entities that do not occur in train."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(name for name in NAMES if name != "unseen_f1" or self.has_unseen)

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return hits and totals (true + predicted) of each sentence; for each type in macro-F1.

        Returns:
            (items, 2), for ``macro_f1`` (items, 2 * types).
        """
        if metric not in self.metrics:
            raise ValueError(f"Unknown metric '{metric}'. Available: {', '.join(self.metrics)}.")
        table = np.zeros((len(gold), self.classes if metric == "macro_f1" else 1, 2))
        for row, true, shown in zip(table, gold, predicted, strict=True):
            if metric == "unseen_f1":
                true, shown = ([entity for entity in found if not entity[3]] for found in (true, shown))
            for place, found in enumerate((_hits(true, shown, metric), true, shown)):
                for entity in found:
                    row[entity[2] if metric == "macro_f1" else 0, int(place > 0)] += 1
        return table.reshape(len(gold), -1)

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Turn sums of counts into scores."""
        return mean_f1(sums) if metric == "macro_f1" else pooled_f1(sums)

    def equivalent_metric(self, metric: str) -> str:
        """Return micro-F1 for macro-F1 and for the F1 of boundaries if there is only one type."""
        return "micro_f1" if self.classes == 1 and metric in ("macro_f1", "boundary_f1") else metric


def _hits(gold: Sequence[Entity], predicted: Sequence[Entity], metric: str) -> Iterable[Entity]:
    """Return the predicted entities that count as correct."""
    if metric == "overlap_f1":
        return [entity for _, entity in match_overlaps(gold, predicted, same_type=True)]
    size = 2 if metric == "boundary_f1" else 3
    true = {tuple(entity[:size]) for entity in gold}
    return [entity for entity in predicted if tuple(entity[:size]) in true]


def match_overlaps(
    gold: Sequence[Entity], predicted: Sequence[Entity], *, same_type: bool
) -> list[tuple[Entity, Entity]]:
    """Match gold and predicted entities that have a common part, each at most once, as many as possible.

    Args:
        gold: Entities without overlaps.
        predicted: Entities without overlaps.
        same_type: Whether only entities of one type match.
    """
    types = {entity[2] for entity in gold} if same_type else {None}
    pairs: list[tuple[Entity, Entity]] = []
    for number in types:
        left, right = (sorted((e for e in found if number in (None, e[2])), key=tuple) for found in (gold, predicted))
        first = second = 0
        while first < len(left) and second < len(right):  # of intervals in order, the earliest pair is always optimal
            one, two = left[first], right[second]
            if one[0] < two[1] and two[0] < one[1]:
                pairs.append((one, two))
                first, second = first + 1, second + 1
            elif one[1] <= two[1]:
                first += 1
            else:
                second += 1
    return pairs


def count_errors(gold: Sequence[Sequence[Entity]], predicted: Sequence[Sequence[Entity]]) -> dict[str, int]:
    """Return the number of entities by what is wrong with them.

    A gold entity is ``"correct"``; or else one of the same boundaries is predicted (``"type"``), one that overlaps it
    and has its type (``"boundary"``), or one that only overlaps it (``"boundary and type"``); or it is ``"missed"``.
    Predicted entities that remain are ``"spurious"``. Each entity counts once.
    """
    found: Counter[str] = Counter(dict.fromkeys(ERRORS, 0))
    for true, shown in zip(gold, predicted, strict=True):
        left, right = [tuple(e[:3]) for e in true], [tuple(e[:3]) for e in shown]
        for name, size in (("correct", 3), ("type", 2)):
            same = {e[:size] for e in left} & {e[:size] for e in right}
            found[name] += len(same)
            left, right = ([e for e in side if e[:size] not in same] for side in (left, right))
        for name in ("boundary", "boundary and type"):
            pairs = match_overlaps(left, right, same_type=name == "boundary")
            found[name] += len(pairs)
            left, right = ([e for e in side if e not in {p[i] for p in pairs}] for i, side in enumerate((left, right)))
        found["missed"] += len(left)
        found["spurious"] += len(right)
    return dict(found)


def entity_metrics(
    gold: Sequence[Sequence[Entity]], predicted: Sequence[Sequence[Entity]], labels: Sequence[str]
) -> dict[str, Any]:
    """Score predicted entities.

    Args:
        gold: The true entities of each sentence.
        predicted: The predicted entities of each sentence.
        labels: The name of each type.

    Returns:
        The metrics of :class:`EntityScoring`, ``precision`` and ``recall`` over all entities, and ``seen_f1``, the
        strict F1 of entities that occur in train, all in [0, 1]; ``per_class``, for each type its ``precision``,
        ``recall``, ``f1`` and ``support``; ``errors``, see :func:`count_errors`; ``seen_support`` and
        ``unseen_support``, the true entities that occur in train or do not; and ``notes``, sentences on the two.

    Raises:
        ValueError: If there are no sentences, or the lengths differ.
    """
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} lists of true entities do not match {len(predicted)} of predicted ones.")
    unseen, seen = (sum(entity[3] == flag for found in gold for entity in found) for flag in (0, 1))
    scoring = EntityScoring(len(labels), bool(unseen))
    hits, true, shown = np.zeros((3, len(labels)))
    for one, two in zip(gold, predicted, strict=True):
        for counted, found in ((hits, _hits(one, two, "micro_f1")), (true, one), (shown, two)):
            np.add.at(counted, [entity[2] for entity in found], 1)
    seen_gold, seen_predicted = (
        [[entity for entity in found if entity[3]] for found in side] for side in (gold, predicted)
    )
    errors, scores = count_errors(gold, predicted), {n: scoring.score(gold, predicted, n) for n in scoring.metrics}
    seen_f1, unseen_f1 = scoring.score(seen_gold, seen_predicted, "micro_f1"), scores.get("unseen_f1", 0.0)
    return {
        **scores,
        "seen_f1": seen_f1,
        "precision": float(hits.sum() / max(shown.sum(), 1)),
        "recall": float(hits.sum() / max(true.sum(), 1)),
        "per_class": scores_per_class(labels, hits, true, shown),
        "errors": errors,
        "seen_support": seen,
        "unseen_support": unseen,
        "notes": [
            f"Of {seen + unseen:,} true entities {errors['correct']:,} are correct, {errors['boundary']:,} have wrong "
            f"boundaries, {errors['type']:,} a wrong type, {errors['boundary and type']:,} both, and "
            f"{errors['missed']:,} are missed; {errors['spurious']:,} predicted entities are none.",
            f"Strict F1 is {seen_f1:.3f} for the {seen:,} entities that train has, {unseen_f1:.3f} for the {unseen:,} "
            "that it does not have.",
        ],
    }
