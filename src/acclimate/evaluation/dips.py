"""Dips of measured losses: when a rise above the base model is over, and which measurement lies in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acclimate.models.kinds import loss_terms
from acclimate.results.adaptations import CurvePoint

RECOVERED = 0.5
"""Share of a rise that has to be gone before a dip counts as over."""


@dataclass(frozen=True)
class Dip:
    """A rise of a loss above the base model's, as at the start of many adaptations.

    Such a dip of quality often recovers in the same training (the stability gap: Guo et al., 2024), so a model of its
    middle says little about the method.

    Attributes:
        depth: Largest rise above the first value; 0 if there is none.
        step: The measured step of the largest rise; None if there is none.
        half: The first measured step after it at which half of the rise is gone; None if there is none.
        recovery: The first measured step after it with no more than the first value; None if there is none.
        remaining: Last value minus the first.
    """

    depth: float
    step: int | None
    half: int | None
    recovery: int | None
    remaining: float

    def describe(self) -> str:
        """Return the dip as the predicate of a sentence about the loss."""
        if self.step is None:
            return "never rose above the base model's"
        text = f"rose by up to {self.depth:.3f} nats (step {self.step:,})"
        if self.half is None:
            return f"{text} and did not fall by half of that afterwards"
        if self.recovery is None:
            return f"{text}; half of that was gone after step {self.half:,}, and {self.remaining:.3f} remained"
        return f"{text} and was back at the base model's after step {self.recovery:,}"


def find_dip(steps: Sequence[int], losses: Sequence[float]) -> Dip:
    """Find the dip of a measured curve, whose first value is the base model's.

    Args:
        steps: The measured steps, in their order; not empty.
        losses: The loss after each of them; for a metric that should be high, its negative.
    """
    first, worst = losses[0], max(range(len(losses)), key=lambda place: losses[place])
    depth, remaining = losses[worst] - first, losses[-1] - first
    if depth <= 0:
        return Dip(0.0, None, None, None, remaining)
    after = list(zip(steps, losses, strict=True))[worst + 1 :]
    half, whole = (
        next((step for step, loss in after if loss <= limit), None)
        for limit in (losses[worst] - RECOVERED * depth, first)
    )
    return Dip(depth, steps[worst], half, whole, remaining)


def describe_dips(curves: Mapping[str, Sequence[CurvePoint]]) -> list[str]:
    """Return a sentence on the dip of each loss that was measured from the first step on (``monitor``).

    Args:
        curves: From :func:`read_curves`.
    """
    found = []
    for name in ("held-out", "general"):
        points = monitored_points(curves[f"{name.replace('-', '')}_curve"])
        if points:
            found.append(f"{name} loss {find_dip(*zip(*points, strict=True)).describe()}")
    return found


def monitored_points(curve: Sequence[CurvePoint]) -> list[tuple[int, float]]:
    """Return steps and losses of a curve, if it was measured from the first step on; else none.

    The loss is the language model's, which all methods share, or the whole one where there is none.
    """
    points = []
    for point in curve:
        loss = next((point.terms[term] for term in loss_terms() if term in point.terms), point.loss)
        if point.step is not None and loss is not None:
            points.append((point.step, loss))
    return points if {0, 1} <= {step for step, _ in points} else []


def is_in_dip(losses: Sequence[float]) -> list[bool]:
    """Return whether a curve was in a dip after each measurement: above its first value, and at most half recovered.

    Each entry depends on the values up to it alone. Later and smaller rises than an earlier one are no new dip.
    """
    first = worst = losses[0] if losses else 0.0
    inside, found = False, []
    for loss in losses:
        if loss > worst:
            worst, inside = loss, True
        elif loss <= worst - RECOVERED * (worst - first):
            inside = False
        found.append(inside)
    return found


def dip_is_over(losses: Sequence[float]) -> bool:
    """Return whether a curve, measured from the base model on, has recovered from its last dip."""
    return not (losses and is_in_dip(losses)[-1])


def find_best(losses: Sequence[float], *others: Sequence[float]) -> tuple[int, int]:
    """Return the measurement with the lowest loss outside dips, and the number of later ones outside dips.

    A dip is known as one only when it ends. So as long as no dip of any curve has ended, all measurements after the
    first count; from then on, those since the last end of one.

    Args:
        losses: Losses of the base model and after one or more measured steps; the lowest is chosen.
        others: Further losses at the same steps, whose dips are avoided as well.

    Returns:
        The index of the measurement, and the number of measurements after it outside all dips.
    """
    inside = [any(found) for found in zip(*map(is_in_dip, (losses, *others)), strict=True)]
    ends = [
        place
        for found in map(is_in_dip, (losses, *others))
        for place in range(1, len(found))
        if found[place - 1] and not found[place]
    ]
    best = min(range(max([1, *ends]), len(losses)), key=lambda place: losses[place])
    return best, inside[best + 1 :].count(False)
