"""Metrics of each kind of task, as counts per test item and a function of their sum.

Accuracy, every F1 and every mean have this form. That makes paired statistics cheap: a resample of the items is a
vector of weights, and two thousand resamples are one matrix product with the table of counts. At the end, accuracy and
F1 of classifiers, in total and per class.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from acclimate.base.registry import Part, Registry

COLLAPSE_SHARE = 0.99
"""A model has collapsed if it predicts one answer for more than this share of the items."""
MIN_EXCESS_SHARE = 0.05
"""A collapse counts only if the answer is predicted more often than it is true, by over this share of the items."""
MIN_ITEMS = 20
"""Minimum number of items; with fewer, equal answers may be a coincidence."""
SHUFFLES = 19
"""Random orders of the answers of a model; a score above all of them has p <= 0.05 (one-sided permutation test)."""


class Collapse(NamedTuple):
    """The answer, in the form of a prediction, and the number of items that it was predicted for.

    A ``reason`` says why a model has not learned its task, if it does not always give the same answer.
    """

    answer: Any
    items: int
    reason: str = ""


def find_collapse(gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
    """Return the answer of a collapsed model; None if the model has not collapsed.

    Args:
        gold: The true answer to each item: a class number, a list of class numbers, or a list of texts.
        predicted: The predicted answer to each item, in the same form.
    """
    if len(predicted) < MIN_ITEMS:
        return None
    (key, count), *_ = Counter(map(json.dumps, predicted)).most_common(1)
    correct = sum(json.dumps(value) == key for value in gold)
    if count <= COLLAPSE_SHARE * len(predicted) or count - correct <= MIN_EXCESS_SHARE * len(predicted):
        return None
    return Collapse(json.loads(key), count)


@dataclass(frozen=True, kw_only=True)
class Scoring(Part, ABC):
    """The metrics of one kind of task, each in [0, 1], or [-1, 1] for correlations; higher is better.

    A new kind of task needs a registered subclass, a frozen dataclass. The fields are plain
    values: they are stored with the predictions, so that a study can score these again.

    Items of one group, such as the sentences of a document, were drawn together and are not independent. So a group is
    the *unit* of all statistics: it is resampled and swapped as a whole, and counts once in the degrees of freedom.
    Scores are not changed by it.
    """

    hub_task: ClassVar[tuple[str, str]]
    """Pipeline tag and title of such tasks on the Hugging Face Hub."""
    errors: ClassVar[tuple[str, ...]] = ()
    """Further measures, in the unit of the target; lower is better, and no weights are selected by them."""
    failure: ClassVar[str] = "predict the same answer for almost all test items"
    """Predicate in messages about models that have not learned the task, see :meth:`find_collapse`."""
    groups: tuple[int, ...] | None = None
    """Number of the group of each item (items,), from zero without gaps; None: each item is a group of its own."""
    group_name: str = "document"
    """Name of a group, in the singular."""

    def __post_init__(self) -> None:
        """Convert lists, which is what JSON gives, to tuples."""
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics; the first is the default primary metric of a task."""

    @abstractmethod
    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the counts of each item (items, k); trailing columns that are all zero may be left out."""

    @abstractmethod
    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Return the scores (...) of sums of counts (..., k)."""

    def unit_of(self, metric: str) -> tuple[int, ...] | None:
        """Return the number of the unit of each item (items,), from zero without gaps; None: each item is one."""
        return self.groups

    def counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the counts of each unit (units, k): the sums over its items."""
        return pool_rows(self.item_counts(gold, predicted, metric), self.unit_of(metric))

    def resampler(
        self, gold: Sequence[Any], predicted: Sequence[Any], metric: str
    ) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
        """Return the number of units, and a function from their weights (..., units) to scores (...).

        A metric that is no function of sums over items gives the weight of a unit to each of its items.
        """
        measure, units = self.item_measure(gold, predicted, metric), self.unit_of(metric)
        if measure is None:
            table = self.counts(gold, predicted, metric)
            return len(table), lambda weights: self.value(weights @ table, metric)
        if units is None:
            return len(gold), measure
        place = np.asarray(units)
        return max(units) + 1, lambda weights: measure(weights[..., place])

    def item_measure(
        self, gold: Sequence[Any], predicted: Sequence[Any], metric: str
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return a function from weights of the items (..., items) to scores (...).

        None: the metric is a function of sums of counts.
        """
        return None

    def equivalent_metric(self, metric: str) -> str:
        """Return the first metric that always has the same value as this one, possibly itself."""
        return metric

    def learned_by(self, metric: str) -> str:
        """Return the metric that shows whether a model has learned the task, where one or an error is compared."""
        return metric if metric in self.metrics else self.metrics[0]

    def find_collapse(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Collapse | None:
        """Return the answer that a collapsed model gives to nearly all items; None if it has not collapsed."""
        return find_collapse(gold, predicted)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> float:
        """Score predictions."""
        return float(self.value(self.counts(gold, predicted, metric).sum(0), metric))

    def show(self, metric: str, value: float) -> str:
        """Format a score in percent, or an error in the unit of the target."""
        return f"{value:.4g}" if metric in self.errors else f"{100 * value:.1f}"

    def details(self) -> dict[str, Any]:
        """Return the fields as plain values, from which :func:`make_scoring` makes an equal scoring."""
        return asdict(self)


def pool_rows(rows: np.ndarray, groups: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """Return the sums of the rows of each group (groups, ...); without groups the rows (items, ...) themselves."""
    if groups is None:
        return rows
    place = np.asarray(groups)
    pooled = np.zeros((int(place.max()) + 1, *rows.shape[1:]))
    np.add.at(pooled, place, rows)
    return pooled


@dataclass(frozen=True)
class MeanScoring(Scoring):
    """A kind of task whose metrics are means of one score per item."""

    names: ClassVar[tuple[str, ...]] = ()
    """The names of the metrics."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return self.names

    @abstractmethod
    def item_scores(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> Sequence[float]:
        """Return the score of each item."""

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the score of each item and a one (items, 2)."""
        if metric not in self.metrics:
            raise _unknown_metric(metric, self)
        values = np.asarray(self.item_scores(gold, predicted, metric), dtype=float)
        return np.stack([values, np.ones(len(values))], -1)

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Return the mean."""
        return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1e-12))


SCORINGS: Registry[Scoring] = Registry("acclimate.scorings", "scoring", "scorings")
register, find_scoring = SCORINGS.register, SCORINGS.lookup


@register("single_label")
@dataclass(frozen=True)
class SingleLabel(Scoring):
    """Single-label classification; gold and predicted are class numbers.

    Macro-F1 is the mean over the classes that occur in gold or predictions. Micro-F1 equals accuracy.
    ``positive_micro_f1``, available if ``negative`` is given, pools the other classes, as is usual in relation
    extraction, where most pairs have no relation: correctly predicted negatives do not count.
    """

    hub_task: ClassVar[tuple[str, str]] = ("text-classification", "Text Classification")
    negative: tuple[int, ...] = ()
    """Class numbers of the negative classes ("no relation")."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return ("macro_f1", "accuracy", "micro_f1", *(["positive_micro_f1"] if self.negative else []))

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the counts of each item: see :class:`Scoring`."""
        truth, shown = np.asarray(gold, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
        if metric in ("accuracy", "micro_f1"):
            return np.stack([truth == shown, np.ones(truth.size)], -1).astype(float)
        if metric == "positive_micro_f1" and self.negative:
            is_true, is_shown = ~np.isin(truth, self.negative), ~np.isin(shown, self.negative)
            return np.stack([(truth == shown) & is_true, is_true.astype(float) + is_shown], -1).astype(float)
        if metric != "macro_f1":
            raise _unknown_metric(metric, self)
        classes = int(max(truth.max(), shown.max())) + 1
        return _class_hits_and_totals(np.eye(classes)[truth], np.eye(classes)[shown])

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Turn sums of counts into scores."""
        if metric in ("accuracy", "micro_f1"):
            return sums[..., 0] / np.maximum(sums[..., 1], 1e-12)
        return mean_f1(sums) if metric == "macro_f1" else pooled_f1(sums)

    def equivalent_metric(self, metric: str) -> str:
        """Return accuracy for micro-F1."""
        return "accuracy" if metric == "micro_f1" else metric


@register("multi_label")
@dataclass(frozen=True)
class MultiLabel(Scoring):
    """Multi-label classification; gold and predicted are lists of class numbers.

    Micro-F1 pools all decisions; macro-F1 is the mean over the labels that occur in gold or predictions;
    ``subset_accuracy`` is the share of items whose labels are all correct.

    ``document_f1``, available if ``documents`` is given, is the metric of BLUE for Hallmarks of Cancer (Peng et al.,
    2019). The labels of a document are the union of its rows' labels, precision and recall are means over documents,
    and F1 is computed from the two means. A document without true labels has no recall and is left out; the scorer of
    BLUE would divide by zero. A document with true labels but no predicted ones has a precision of zero. All rows of a
    document must be in one group.
    """

    hub_task: ClassVar[tuple[str, str]] = ("text-classification", "Multi-label Classification")
    classes: int
    documents: tuple[int, ...] | None = None
    """Number of the document of each item (items,), from zero without gaps."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return ("macro_f1", "micro_f1", "subset_accuracy", *(["document_f1"] if self.documents else []))

    def unit_of(self, metric: str) -> tuple[int, ...] | None:
        """Return the number of the unit of each item; without groups, ``document_f1`` has documents as units."""
        return self.documents if metric == "document_f1" and self.groups is None else self.groups

    def item_counts(self, gold: Sequence[Any], predicted: Sequence[Any], metric: str) -> np.ndarray:
        """Return the counts of each item: see :class:`Scoring`. A document is counted at its first row."""
        truth, shown = label_indicators(gold, self.classes), label_indicators(predicted, self.classes)
        if metric == "macro_f1":
            return _class_hits_and_totals(truth, shown)
        if metric == "micro_f1":
            return np.stack([(truth * shown).sum(1), (truth + shown).sum(1)], -1)
        if metric == "subset_accuracy":
            return np.stack([(truth == shown).all(1), np.ones(len(truth))], -1).astype(float)
        if metric != "document_f1" or self.documents is None:
            raise _unknown_metric(metric, self)
        documents = np.asarray(self.documents)
        first, second = np.zeros((2, documents.max() + 1, self.classes))
        np.maximum.at(first, documents, truth)
        np.maximum.at(second, documents, shown)
        hits, true_count, shown_count = (first * second).sum(1), first.sum(1), second.sum(1)
        precision, recall = hits / np.maximum(shown_count, 1), hits / np.maximum(true_count, 1)
        table = np.zeros((len(documents), 3))
        table[np.unique(documents, return_index=True)[1]] = (
            np.stack([precision, recall, np.ones(len(hits))], -1) * (true_count > 0)[:, None]
        )
        return table

    def value(self, sums: np.ndarray, metric: str) -> np.ndarray:
        """Turn sums of counts into scores."""
        if metric == "macro_f1":
            return mean_f1(sums)
        if metric == "micro_f1":
            return pooled_f1(sums)
        if metric == "subset_accuracy":
            return sums[..., 0] / np.maximum(sums[..., 1], 1e-12)
        # F1 of the means P / n and R / n is 2 P R / (n (P + R)).
        precision, recall, documents = (sums[..., place] for place in range(3))
        divisor = documents * (precision + recall)
        return np.divide(2 * precision * recall, divisor, out=np.zeros(np.shape(divisor)), where=divisor > 0)


def label_indicators(labels: Sequence[Sequence[int]], classes: int) -> np.ndarray:
    """Return the labels as indicators, float64 of shape (items, classes)."""
    table = np.zeros((len(labels), classes))
    for row, numbers in zip(table, labels, strict=True):
        row[list(numbers)] = 1.0
    return table


def _class_hits_and_totals(gold: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Interleave the hits and the totals (true + predicted) of each class, (items, 2 * classes).

    Args:
        gold: Indicators of the true labels (items, classes).
        shown: Indicators of the predicted labels (items, classes).
    """
    return np.stack([gold * shown, gold + shown], -1).reshape(len(gold), -1)


def mean_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 (...) of the classes that occur in the true or predicted labels.

    Args:
        sums: Hits and totals of each class, interleaved (..., 2 * classes).
    """
    hits, totals = sums[..., 0::2], sums[..., 1::2]
    present = totals > 0
    f1 = np.divide(2 * hits, totals, out=np.zeros(hits.shape), where=present)
    return f1.sum(-1) / np.maximum(present.sum(-1), 1)


def pooled_f1(sums: np.ndarray) -> np.ndarray:
    """Return 2 * hits / total (...), zero if the total is zero, from hits and totals (..., 2)."""
    hits, totals = sums[..., 0], sums[..., 1]
    return np.divide(2 * hits, totals, out=np.zeros(np.shape(hits)), where=totals > 0)


def _unknown_metric(metric: str, scoring: Scoring) -> ValueError:
    return ValueError(f"Unknown metric '{metric}'. Available: {', '.join(scoring.metrics)}.")


def make_scoring(kind: str, details: Mapping[str, Any]) -> Scoring:
    """Make the scoring of stored predictions.

    Args:
        kind: The name of the scoring.
        details: Its fields, as plain values.

    Raises:
        UserError: If the kind is unknown.
    """
    return find_scoring(kind)(**details)


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
    # scikit-learn would read the indicators of a single label as two classes.
    return {**scores, "per_class": scores_per_class(labels, *(table.sum(0) for table in (true * shown, true, shown)))}


def scores_per_class(
    labels: Sequence[str], hits: np.ndarray, true: np.ndarray, shown: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Return ``precision``, ``recall``, ``f1`` (zero if undefined) and ``support`` of each class, by its name.

    Args:
        labels: The name of each class.
        hits: Number of correct predictions of each class (classes,).
        true: Number of true items of each class.
        shown: Number of predictions of each class.
    """
    rows = zip(labels, *(counts.tolist() for counts in (hits, true, shown)), strict=True)
    return {
        label: {
            "precision": correct / max(predicted, 1),
            "recall": correct / max(support, 1),
            "f1": 2 * correct / max(support + predicted, 1),
            "support": int(support),
        }
        for label, correct, support, predicted in rows
    }


def _check_labels(
    gold: Sequence[Any], predicted: Sequence[Any], numbers: Sequence[int], labels: Sequence[str]
) -> None:
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold labels cannot be compared with {len(predicted)} predictions.")
    if not all(0 <= number < len(labels) for number in numbers):
        raise ValueError(f"A class number is outside the range of the {len(labels)} labels.")


def is_above_chance(gold: Sequence[Any], runs: Sequence[Sequence[Any]], metric: str, scoring: Scoring) -> bool:
    """Return whether any of several models has learned a task.

    A model that gives the most frequent answer to all items has not, nor one whose answers do not depend on the item.
    So a score must be above the most frequent answer's, and the mean score above the score of the same answers in
    random order, which is a permutation test at the 5 % level. Answers to the items of a group are as little
    independent as the items, so they stay together: groups are put in a random order, which starts at a random item.

    Args:
        gold: The true answer to each item.
        runs: The predicted answers of each model.
        metric: A metric of the scoring.
        scoring: The scoring of the task.
    """
    scores = [scoring.score(gold, predicted, metric) - 1e-12 for predicted in runs]
    (common, _), *_ = Counter(map(json.dumps, gold)).most_common(1)
    if max(scores) <= scoring.score(gold, [json.loads(common)] * len(gold), metric):
        return False
    rng = np.random.default_rng(0)
    groups = np.arange(len(gold)) if scoring.groups is None else np.asarray(scoring.groups)
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
    order = np.concatenate(members)

    def shuffled_score(predicted: Sequence[Any]) -> float:
        drawn = np.concatenate([members[group] for group in rng.permutation(len(members))])
        if len(members) < len(gold):
            drawn = np.roll(drawn, rng.integers(len(drawn)))
        return scoring.score([gold[place] for place in order], [predicted[place] for place in drawn], metric)

    # Five standard errors of a share, so that one random order is enough for most models.
    margin = 2.5 / len(members) ** 0.5
    if any(score - shuffled_score(run) > margin for score, run in zip(scores, runs, strict=True)):
        return True
    means = (np.mean([shuffled_score(predicted) for predicted in runs]) for _ in range(SHUFFLES))
    return all(np.mean(scores) > mean for mean in means)
