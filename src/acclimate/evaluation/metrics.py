"""Accuracy and F1 of a classifier, over all items and per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from acclimate.evaluation.scoring import MultiLabel, label_indicators

NAMES = ("accuracy", "macro_f1", "micro_f1")


def classification_metrics(gold: Sequence[int], predicted: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Score single-label predictions.

    Macro-F1 is the mean over the classes that occur in ``gold`` or in ``predicted``, which is what scikit-learn does
    by default: a class of which this test set has no item, and which was never predicted, does not count as zero.
    Micro-F1 equals accuracy as long as each item has one label; both are given because papers report one or the other.

    Args:
        gold: True class numbers, (items,).
        predicted: Predicted class numbers, (items,).
        labels: The name of each class number.

    Returns:
        ``accuracy``, ``macro_f1``, ``micro_f1``, all in 0..1, and ``per_class``: for each label its ``precision``,
        ``recall``, ``f1`` (zero where undefined) and ``support``, the number of true items.

    Raises:
        ValueError: If there is no item, the lengths differ, or a number has no label.
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
    """Score predictions of any number of labels an item.

    Args:
        gold: True class numbers of each item.
        predicted: Predicted class numbers of each item.
        labels: The name of each class number.

    Returns:
        ``macro_f1``, ``micro_f1`` and ``subset_accuracy`` (see :class:`acclimate.evaluation.scoring.MultiLabel`), all
        in 0..1, and ``per_class`` as :func:`classification_metrics`.

    Raises:
        ValueError: If there is no item, the lengths differ, or a number has no label.
    """
    _check_labels(gold, predicted, [number for row in (*gold, *predicted) for number in row], labels)
    scoring = MultiLabel(len(labels))
    scores = {name: scoring.score(gold, predicted, name) for name in scoring.metrics}
    truth, shown = label_indicators(gold, len(labels)), label_indicators(predicted, len(labels))
    per_class = {
        label: {"precision": hit / (said or 1.0), "recall": hit / (true or 1.0), "f1": 2 * hit / (said + true or 1.0)}
        for label, hit, said, true in zip(labels, *map(_sum_over_items, (truth * shown, shown, truth)), strict=True)
    }
    for row, true in zip(per_class.values(), _sum_over_items(truth), strict=True):
        row["support"] = int(true)
    return {**scores, "per_class": per_class}


def _sum_over_items(table: np.ndarray) -> list[float]:
    """Sum over the items: (items, classes) to (classes,)."""
    summed: list[float] = table.sum(0).tolist()
    return summed


def _check_labels(
    gold: Sequence[Any], predicted: Sequence[Any], numbers: Sequence[int], labels: Sequence[str]
) -> None:
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold labels cannot be compared with {len(predicted)} predictions.")
    if not all(0 <= number < len(labels) for number in numbers):
        raise ValueError(f"A class number lies outside of the {len(labels)} labels.")
