"""Classification, with one label an item or with any number: reading the task, learning it, measuring it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.backbone.device import Precision
from acclimate.evaluation.calibration import calibration
from acclimate.evaluation.metrics import classification_metrics, multi_label_metrics
from acclimate.tasks.classifier import Classifier, load_classifier
from acclimate.tasks.data import Example, Task
from acclimate.tasks.labels import read_task
from acclimate.tasks.options import Options
from acclimate.tasks.result import Measured

THRESHOLD = 0.5
"""A label is predicted if its probability is above it."""


class Classification:
    """The kind of every folder that no other kind claims."""

    def matches(self, folder: Path) -> bool:
        """Take every folder: what is wrong with it is said when it is read."""
        return True

    def load(self, folder: Path, name: str) -> Task:
        """Read the task; lists of labels in its train rows make it multi-label."""
        return read_task(folder, name)

    def owns(self, task: Any) -> bool:
        """Say whether this is a classification task."""
        return isinstance(task, Task)

    def learner(self, model: str | Path, task: Task, options: Options, device: torch.device) -> ClassificationLearner:
        """Load a checkpoint as a classifier for the task."""
        classifier = load_classifier(model, task.labels, options.max_length, device, task.multi_label)
        return ClassificationLearner(classifier, task, options.negative)


class ClassificationLearner:
    """A classifier that learns a task."""

    def __init__(self, classifier: Classifier, task: Task, negative: Sequence[str] = ()):
        """Take a classifier for the labels of the task, and which of these are negative."""
        self.classifier, self.task, self.negative = classifier, task, negative
        self.model, self.tokenizer = classifier.model, classifier.tokenizer

    def rows(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the model inputs of each example with its label, or with a float for each label."""
        return self.classifier.features(examples)

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to a batch."""
        return self.classifier.collate(rows)

    def measure(self, split: str, precision: Precision) -> Measured:
        """Predict a split of the task; return its metrics, per class too, and its calibration."""
        examples: list[Example] = getattr(self.task, split)
        probabilities = self.classifier.probabilities(examples, precision)
        scoring, labels = self.task.scoring(split, self.negative), self.task.labels
        gold: list[Any]
        predicted: list[Any]
        if self.task.multi_label:
            gold = [list(example.places) for example in examples]
            predicted = [row.nonzero().flatten().tolist() for row in probabilities > THRESHOLD]
            metrics = multi_label_metrics(gold, predicted, labels)
        else:
            gold = [example.label for example in examples]
            predicted = probabilities.argmax(1).tolist()
            metrics = classification_metrics(gold, predicted, labels)
        extra = {name: scoring.score(gold, predicted, name) for name in scoring.metrics if name not in metrics}
        rows = probabilities.tolist()
        return Measured({**metrics, **extra, **calibration(rows, gold)}, gold, predicted, rows)

    def readable(self, value: Any) -> Any:
        """Return the name of a label, or the names of a list of them."""
        labels = self.task.labels
        return [labels[number] for number in value] if isinstance(value, list) else labels[value]
