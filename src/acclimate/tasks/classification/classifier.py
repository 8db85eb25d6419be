"""A classifier made of a checkpoint: loading it, feeding it examples, and asking it for probabilities.

Classification, with one label an item or with any number: reading the task, learning it, measuring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.device import Precision, autocast
from acclimate.evaluation.calibration import calibration_metrics
from acclimate.evaluation.metrics import classification_metrics, multi_label_metrics
from acclimate.models.batching import micro_batch_tokens, padding_multiple
from acclimate.models.encoding import skip_unread_tokens
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.classification.data import Example, Task, read_task
from acclimate.tasks.loading import fp32_last_layer, load_with_head
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.result import EvaluationResult
from acclimate.tasks.trainer import divergence_error


@dataclass
class Classifier:
    """A sequence classification model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    """Tokens that are read of an example; of a pair the longer text is cut first."""

    def __post_init__(self) -> None:
        """Find out what inputs the model takes."""
        # The model decides, not the tokenizer: that may give segment numbers to a model with one segment or none, or,
        # saved without its class, keep them from a model that was trained with them.
        self._segments = getattr(self.model.config, "type_vocab_size", 0) > 1

    @property
    def multi_label(self) -> bool:
        """Whether the classes do not exclude each other."""
        return self.model.config.problem_type == "multi_label_classification"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def features(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the model inputs of each example, not padded, with its label.

        A special token that stands in a text, such as ``[SEP]``, is read as the text that it is, as in a corpus.
        In a multi-label task the label is a list of floats, one for each class: one where it holds, else zero.
        """
        texts = [example.text for example in examples]
        seconds = [example.text_pair for example in examples if example.text_pair is not None]
        read = self.tokenizer(
            texts,
            seconds or None,
            truncation="longest_first",
            max_length=self.max_length,
            split_special_tokens=True,
            return_token_type_ids=self._segments,
        )
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * self._segments
        return [
            {**{name: read[name][place] for name in names}, "labels": self._target(example)}
            for place, example in enumerate(examples)
        ]

    def _target(self, example: Example) -> int | list[float]:
        if not self.multi_label:
            return example.places[0]
        return [float(number in example.places) for number in range(self.model.config.num_labels or 0)]

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to the longest of them, or a little more, and make tensors of them."""
        return DataCollatorWithPadding(self.tokenizer, pad_to_multiple_of=padding_multiple(self.model))(rows)

    def batches(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Cut rows of token ids into batches to read without a graph; see :func:`token_budget_batches`."""
        return token_budget_batches(rows, micro_batch_tokens(self.model), padding_multiple(self.model))

    @torch.inference_mode()
    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes: (examples, classes), fp32 on the CPU, in the order of ``examples``.

        In a multi-label task it is the sigmoid of each.

        The texts are read by length in batches of similar length. What comes out for an example depends on which
        others are asked for with it (in the last bits, through padding), but not on their order.

        Raises:
            UserError: If the model gives something that is not a number.
        """
        rows = self.features(examples)
        result = torch.empty(len(rows), int(self.model.config.num_labels or 0))
        self.model.eval()
        with fp32_last_layer(self.model), skip_unread_tokens(self.model):
            for batch in self.batches([row["input_ids"] for row in rows]):
                inputs = self.collate([rows[place] for place in batch])
                inputs.pop("labels")
                with autocast(precision, self.device):
                    logits = self.model(**{name: value.to(self.device) for name, value in inputs.items()}).logits
                exact = logits.float()
                result[batch] = (exact.sigmoid() if self.multi_label else exact.softmax(-1)).cpu()
        if not bool(result.isfinite().all()):
            raise divergence_error()
        return result


def load_classifier(
    path: str | Path, labels: Sequence[str], max_length: int, device: torch.device, multi_label: bool = False
) -> Classifier:
    """Load a checkpoint of any kind as a classifier in fp32, on the CPU.

    See :func:`acclimate.tasks.loading.load_with_head`; a checkpoint that already is a classifier with as many classes
    goes on from its head.

    Args:
        path: A model folder, or a name on the hub.
        labels: The classes.
        max_length: Tokens that are read of an example, at most; never more than the model can read.
        device: Where it is going to run, which decides how attention is computed.
        multi_label: Whether an example may have any number of labels: each class then has a sigmoid of its own.

    Raises:
        UserError: If there is no model, or its encoder is incomplete.
    """
    names = dict(enumerate(labels))
    settings = {
        "num_labels": len(names),
        "id2label": names,
        "label2id": {label: place for place, label in names.items()},
        "problem_type": f"{'multi' if multi_label else 'single'}_label_classification",
    }
    return Classifier(
        *load_with_head(AutoModelForSequenceClassification, path, settings, max_length, device, "classifier")
    )


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

    def learner(
        self, model: str | Path, task: Task, options: FinetuneOptions, device: torch.device
    ) -> ClassificationLearner:
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

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
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
        return EvaluationResult({**metrics, **extra, **calibration_metrics(rows, gold)}, gold, predicted, rows)

    def readable(self, value: Any) -> Any:
        """Return the name of a label, or the names of a list of them."""
        labels = self.task.labels
        return [labels[number] for number in value] if isinstance(value, list) else labels[value]
