"""Accuracy and F1 of classifiers, in total and per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from acclimate.evaluation.scoring import MultiLabel, label_indicators

NAMES = ("accuracy", "macro_f1", "micro_f1")


def classification_metrics(gold: Sequence[int], predicted: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Score single-label predictions.

    Macro-F1 is the mean over the classes that occur in ``gold`` or ``predicted``, as in scikit-learn. Micro-F1 equals
    accuracy in a single-label task; both are returned because papers report one or the other.

    Args:
        gold: True class numbers (items,).
        predicted: Predicted class numbers (items,).
        labels: The name of each class.

    Returns:
        ``accuracy``, ``macro_f1`` and ``micro_f1``, all in [0, 1], and ``per_class``: for each label its
        ``precision``, ``recall`` and ``f1`` (zero if undefined), and ``support``, the number of true items.

    Raises:
        ValueError: If there are no items, the lengths differ, or a class number is out of range.
    """
    _check_labels(gold, predicted, [*gold, *predicted], labels)
    numbers = list(range(len(labels)))
    rows = zip(labels, *precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0), strict=True)
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0)),
        "micro_f1": float(f1_score(gold, predicted, average="micro", zero_division=0)),
        "per_class": {
            label: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
            for label, precision, recall, f1, support in rows
        },
    }


def multi_label_metrics(
    gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], labels: Sequence[str]
) -> dict[str, Any]:
    """Score multi-label predictions.

    Args:
        gold: True class numbers of each item.
        predicted: Predicted class numbers of each item.
        labels: The name of each class.

    Returns:
        ``macro_f1``, ``micro_f1`` and ``subset_accuracy`` (see :class:`acclimate.evaluation.scoring.MultiLabel`), all
        in [0, 1], and ``per_class`` as in :func:`classification_metrics`.

    Raises:
        ValueError: If there are no items, the lengths differ, or a class number is out of range.
    """
    _check_labels(gold, predicted, [number for row in (*gold, *predicted) for number in row], labels)
    scoring = MultiLabel(len(labels))
    scores = {name: scoring.score(gold, predicted, name) for name in scoring.metrics}
    true, shown = label_indicators(gold, len(labels)), label_indicators(predicted, len(labels))
    # scikit-learn would read the indicators of a single label as those of two classes.
    hits, support, counts = ((table.sum(0)).tolist() for table in (true * shown, true, shown))
    per_class = {
        label: {
            "precision": hits[i] / (counts[i] or 1.0),
            "recall": hits[i] / (support[i] or 1.0),
            "f1": 2 * hits[i] / (counts[i] + support[i] or 1.0),
            "support": int(support[i]),
        }
        for i, label in enumerate(labels)
    }
    return {**scores, "per_class": per_class}


def _check_labels(
    gold: Sequence[Any], predicted: Sequence[Any], numbers: Sequence[int], labels: Sequence[str]
) -> None:
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold labels cannot be compared with {len(predicted)} predictions.")
    if not all(0 <= number < len(labels) for number in numbers):
        raise ValueError(f"A class number is outside the range of the {len(labels)} labels.")
