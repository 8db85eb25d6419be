"""Calibration: whether a classifier is right as often as its confidence says.

Expected calibration error (ECE; Naeini et al., AAAI 2015; Guo et al., ICML 2017, Eq. 3): the predictions are sorted
into bins B_m by their confidence, and ECE = sum_m |B_m| / n * |accuracy(B_m) - confidence(B_m)|.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

BINS = 15
"""Bins of equal width over [0, 1]; the m-th is ((m - 1) / 15, m / 15], as in Guo et al."""
MIN_PROBABILITY = 2.0**-126
"""Lower bound of probabilities, so that an underflow of the softmax costs 87 nats instead of infinity."""
NAMES = ("ece", "brier", "nll")

Bin = dict[str, Any]
"""Keys: the ends ``low`` and ``high``, the ``count`` of predictions, their mean ``confidence`` and ``accuracy``."""


def calibration_metrics(
    probabilities: Sequence[Sequence[float]], gold: Sequence[int | Sequence[int]], bins: int = BINS
) -> dict[str, Any]:
    """Measure the calibration of a classifier.

    In a single-label task each item is one prediction, whose confidence is the probability of the predicted class. In
    a multi-label task each pair of item and label is a binary prediction, whose confidence is at least one half.

    Args:
        probabilities: Probability of each class for each item (items, classes).
        gold: The true class number of each item, or a list of class numbers in a multi-label task.
        bins: Number of bins of equal width.

    Returns:
        ``ece``, in [0, 1]; ``brier``, the mean squared error of the probabilities, in [0, 2] for a single-label task
        (summed over the classes) and in [0, 1] otherwise; ``nll``, the mean negative log-likelihood in nats; and
        ``reliability``, the non-empty bins, for a reliability diagram. The results do not depend on the order of the
        items, not even by rounding.

    Raises:
        ValueError: If there are no items, or the lengths differ.
    """
    if not gold or len(gold) != len(probabilities):
        raise ValueError(f"{len(gold)} gold labels do not match {len(probabilities)} rows of probabilities.")
    predictions: list[tuple[float, bool]] = []  # confidence, correctness
    squares: list[float] = []
    logs: list[float] = []
    for row, truth in zip(probabilities, gold, strict=True):
        if isinstance(truth, int):
            top = max(range(len(row)), key=row.__getitem__)
            predictions.append((row[top], top == truth))
            squares += [(value - (number == truth)) ** 2 for number, value in enumerate(row)]
            logs.append(-math.log(max(row[truth], MIN_PROBABILITY)))
            continue
        for number, value in enumerate(row):
            true = number in truth
            predictions.append((max(value, 1 - value), (value > 0.5) == true))
            squares.append((value - true) ** 2)
            logs.append(-math.log(max(value if true else 1 - value, MIN_PROBABILITY)))
    found = _bin_predictions(predictions, bins)
    return {
        "ece": expected_calibration_error(found),
        "brier": math.fsum(squares) / len(predictions),
        "nll": math.fsum(logs) / len(predictions),
        "reliability": found,
    }


def expected_calibration_error(bins: Iterable[Bin]) -> float:
    """Return the ECE of some bins."""
    entries = list(bins)
    total = sum(entry["count"] for entry in entries)
    return math.fsum(entry["count"] * abs(entry["accuracy"] - entry["confidence"]) for entry in entries) / total


def pool_bins(runs: Iterable[Iterable[Bin]]) -> list[Bin]:
    """Merge the bins of several runs, as if all their predictions had been binned together."""
    groups: dict[tuple[float, float], list[Bin]] = {}
    for run in runs:
        for entry in run:
            groups.setdefault((entry["low"], entry["high"]), []).append(entry)
    joined = []
    for (low, high), members in sorted(groups.items()):
        count = sum(entry["count"] for entry in members)
        means = {
            name: math.fsum(entry["count"] * entry[name] for entry in members) / count
            for name in ("confidence", "accuracy")
        }
        joined.append({"low": low, "high": high, "count": count, **means})
    return joined


def _bin_predictions(predictions: Sequence[tuple[float, bool]], bins: int) -> list[Bin]:
    """Sort predictions into bins of equal width; return the non-empty bins."""
    members: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in predictions:
        members.setdefault(max(0, math.ceil(confidence * bins) - 1), []).append((confidence, right))
    return [
        {
            "low": place / bins,
            "high": (place + 1) / bins,
            "count": len(members[place]),
            "confidence": math.fsum(confidence for confidence, _ in members[place]) / len(members[place]),
            "accuracy": sum(right for _, right in members[place]) / len(members[place]),
        }
        for place in sorted(members)
    ]
