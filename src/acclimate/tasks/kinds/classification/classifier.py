"""Classification with one label or any number of labels per example: the classifier, its training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from acclimate.base.device import Precision
from acclimate.base.errors import UserError
from acclimate.base.records import read_kept
from acclimate.cards.card import AUXILIARY_FILE, LABELS_FILE
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import Row
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.calibration import calibration_metrics
from acclimate.evaluation.embeddings import import_sentence_transformers
from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel, classification_metrics, multi_label_metrics
from acclimate.models.saving import find_file
from acclimate.tasks.head_model import HeadModel, check_finite
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.classification.contrastive import FittedClassifier, SentenceClassifier, draw_pairs
from acclimate.tasks.kinds.classification.data import Example, Task, build_task
from acclimate.tasks.kinds.classification.labels import label_name, leave_out_unlabelled, plain_value
from acclimate.tasks.kinds.retrieval.encoder import EncoderTraining, load_bi_encoder
from acclimate.tasks.loading import is_classifier_of, load_with_head
from acclimate.tasks.probing import ClassProbe, LabelSetProbe, Probe
from acclimate.tasks.sources import LABEL_NAMES, Tables, label_column, read_tables, read_texts, select_columns
from acclimate.tasks.trainer import TrainingResult


class Classifier(HeadModel):
    """A sequence classification model with its tokenizer. In a pair, the longer text is truncated first."""

    @property
    def multi_label(self) -> bool:
        """Whether an example can have any number of labels."""
        return self.model.config.problem_type == "multi_label_classification"

    def features(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the model inputs of each example, unpadded, with its label.

        In a multi-label task the label is a list of floats, one per class: 1 where it applies, else 0.

        Raises:
            UserError: If an example has no token at all.
        """
        texts = [example.text for example in examples]
        seconds = [example.text_pair for example in examples if example.text_pair is not None]
        read = self.tokenizer(
            texts,
            seconds or None,
            truncation="longest_first",
            max_length=self.max_length,
            return_token_type_ids=self.reads_segments,
        )
        for example, ids in zip(examples, read["input_ids"], strict=True):
            if not ids:
                raise UserError(
                    f"The tokenizer finds no token in the text {example.text!r:.60}; fix or remove the row."
                )
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * self.reads_segments
        return [
            {**{name: read[name][place] for name in names}, "labels": self._target(example)}
            for place, example in enumerate(examples)
        ]

    def _target(self, example: Any) -> Any:
        if not self.multi_label:
            return example.places[0]
        return [float(number in example.places) for number in range(self.model.config.num_labels or 0)]

    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes, or in a multi-label task the sigmoid of each.

        Returns:
            (examples, classes), fp32 on the CPU, in the order of ``examples``.

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        logits = self.predict(self.features(examples), precision)
        check_finite(logits)
        stacked = torch.stack(logits) if logits else torch.empty(0, int(self.model.config.num_labels or 0))
        return stacked.sigmoid() if self.multi_label else stacked.softmax(-1)


def load_classifier(
    path: str | Path, labels: Sequence[str], max_length: int, device: torch.device, multi_label: bool = False
) -> Classifier:
    """Load any checkpoint as a classifier in fp32, on the CPU.

    See :func:`acclimate.tasks.loading.load_with_head`. A checkpoint that already is a classifier of these
    classes keeps its head, whatever their order.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        labels: The classes.
        max_length: Maximum tokens per example; reduced to what the model can read.
        device: Where the model will run, which determines how attention is computed.
        multi_label: Whether an example can have any number of labels, with a sigmoid for each.

    Raises:
        UserError: If there is no model, or its encoder weights are incomplete.
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
"""A label of a multi-label task is predicted if its probability is above this."""


@TASK_KINDS.register("classification", summary="one label per text or pair of texts, or any number of labels")
class Classification(TaskKind):
    """The kind of every table that no other kind claims; if train rows have lists of labels, it is multi-label."""

    fallback: ClassVar[bool] = True
    distillation: ClassVar[tuple[str, ...]] = ("boundary", "kl")

    def open_tables(self, source: Any, name: str, options: ReadingOptions) -> Tables:
        """Return the rows of a source in any form, with columns of any name."""
        return read_tables(source, name, options)

    def read_tables(self, tables: Tables, name: str, options: ReadingOptions, path: Path | None) -> Task:
        """Read the task."""
        selected = select_columns(tables, name, self.name, options)
        return build_task(name, selected, path, options.split_seed, options.merge_labels)

    def is_model_of(self, path: str | Path, task: Task) -> bool:
        """Return whether a checkpoint is a classifier of the labels, in their order."""
        return is_classifier_of(path, task)

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint is a classifier, or a sentence encoder with a classifier."""
        has_head = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
        single = has_head and config.num_labels > 1 and kind in ("", "single_label", "multi_label")
        return find_file(str(path), LABELS_FILE) is not None or (
            single and find_file(str(path), AUXILIARY_FILE) is None
        )

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> TextPredictor:
        """Load a classifier."""
        if (names := find_file(str(path), LABELS_FILE)) is not None:
            encoder = load_bi_encoder(path, max_length).model
            if (classes := read_kept(names, list[str])) is None:
                raise UserError(f"'{names}' is damaged: it is a list of the names of the classes; fine-tune again.")
            return TextPredictor(FittedClassifier(encoder), classes)
        head = Classifier(
            *load_with_head(AutoModelForSequenceClassification, path, {}, max_length, device, "classifier")
        )
        known: Any = head.model.config.id2label
        return TextPredictor(head, [str(known[place]) for place in range(len(known))])

    def answer(self, example: Example, task: Task) -> str:
        """Return the names of the labels."""
        return ", ".join(task.labels[index] for index in example.places)

    def probe(self, task: Task) -> Probe:
        """Return a probe of one class per text, or of each label."""
        return LabelSetProbe(len(task.labels)) if task.multi_label else ClassProbe()

    def learner(
        self, model: str | Path, task: Task, options: ResolvedOptions, device: torch.device
    ) -> ClassificationLearner:
        """Load a checkpoint as a classifier for the task."""
        classifier = load_classifier(model, task.labels, options.max_length, device, task.multi_label)
        return ClassificationLearner(classifier, task, options.negative)

    def contrastive_learner(
        self, model: str | Path, task: Task, options: ResolvedOptions, device: torch.device
    ) -> ClassificationLearner:
        """Load a checkpoint as a sentence encoder for the task."""
        return ContrastiveLearner.load(model, task, options)


class TextPredictor(Predictor):
    """A classifier of texts, or of pairs of texts.

    Attributes:
        labels: Names of its classes.
    """

    main: ClassVar[str] = "label"

    def __init__(self, head: Any, labels: Sequence[str]) -> None:
        super().__init__(head)
        self.labels = list(labels)

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Example | None]:
        """Return the texts of each row."""
        return [None if texts is None else Example(*texts, 0) for texts in read_texts(rows, options)]

    def answer(self, examples: Sequence[Example], precision: Precision) -> list[Answer]:
        """Return the most probable class, or in a multi-label task all that are more probable than not."""
        return self.name_classes(self.head.probabilities(examples, precision))

    def name_classes(self, probabilities: Tensor) -> list[Answer]:
        """Return the answers that probabilities (examples, classes) give."""
        found: list[Answer] = []
        for row in probabilities.tolist():
            shares = dict(zip(self.labels, row, strict=True))
            if self.multi_label:
                names = [name for name, share in shares.items() if share > THRESHOLD]
                cells = {"label": names, "probability": [shares[name] for name in names]}
                found.append(Answer(cells, sorted(names)))
            else:
                best = max(shares, key=shares.__getitem__)
                found.append(Answer({"label": best, "probability": shares[best]}, best))
        return found

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[Any] | None:
        """Return the class of each row, or the classes; None where it has none."""
        column = label_column(rows, options, LABEL_NAMES)
        given = [(where, {"label": row.get(column)}) for where, row in rows if column is not None]
        found: dict[str, Any] = {}
        for where, row in leave_out_unlabelled("data", {"train": given})["train"]:
            with suppress(UserError, TypeError):
                value = plain_value(where, row["label"])
                names = sorted({label_name(where, one) for one in value}) if self.multi_label else None
                found[where] = label_name(where, value) if names is None else names
        return [found.get(where) for where, _ in rows] if found else None

    def named(self, value: Any) -> list[str]:
        """Return the class, or the classes."""
        return value if self.multi_label else [value]

    def scoring(self, values: Sequence[list[Any]], groups: Mapping[str, Any]) -> tuple[Scoring, list[list[Any]]]:
        """Return the scoring of one class per text, or of any number of classes."""
        several = self.multi_label
        named = {name for part in values for value in part for name in (value if several else [value])}
        numbers = {name: number for number, name in enumerate(sorted(named))}
        if several:
            lists = [[[numbers[name] for name in value] for value in part] for part in values]
            return MultiLabel(classes=len(numbers), **groups), lists
        return SingleLabel(**groups), [[numbers[value] for value in part] for part in values]


class ClassificationLearner(Learner):
    """A classifier that learns a task."""

    head: Classifier
    task: Task

    def __init__(self, classifier: Classifier, task: Task, negative: Sequence[str] = ()) -> None:
        """Set a classifier and a task with the same labels, and the labels that mean "none of these" (negative)."""
        super().__init__(classifier, task)
        self.negative = negative

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Predict a split; return the metrics of the scoring, those per class, and the calibration."""
        return self.evaluate(split, self.head.probabilities(getattr(self.task, split), precision))

    def evaluate(self, split: str, probabilities: Tensor) -> EvaluationResult:
        """Score the probabilities (examples, classes) of a split."""
        examples: list[Example] = getattr(self.task, split)
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
        """Return the name of a label, or the names of a list of labels."""
        labels = self.task.labels
        return [labels[number] for number in value] if isinstance(value, list) else labels[value]


class ContrastiveLearner(ClassificationLearner):
    """A sentence encoder that learns a classification task from pairs of its examples."""

    head: SentenceClassifier  # type: ignore[assignment]

    @classmethod
    def load(cls, model: str | Path, task: Task, options: ResolvedOptions) -> ContrastiveLearner:
        """Load a checkpoint as a sentence encoder for a task.

        Raises:
            UserError: If the task has pairs of texts or several labels per text, or an option does not apply.
        """
        if task.is_pair or task.multi_label:
            raise UserError(
                f"'contrastive' needs single texts with one label each, and '{task.name}' has "
                f"{'pairs of texts' if task.is_pair else 'lists of labels'}; remove it."
            )
        for name, given in (("select", options.select == "dev"), ("confidence_penalty", options.confidence_penalty)):
            if given:
                raise UserError(f"'{name}' does not apply to contrastive training, which ends with a regression.")
        encoder = load_bi_encoder(model, options.max_length).model
        return cls(SentenceClassifier(encoder, task.labels), task, options.negative)  # type: ignore[arg-type]

    def train(
        self, examples: Sequence[Example], options: ResolvedOptions, precision: Precision, **training: Any
    ) -> TrainingResult:
        """Train the encoder on pairs, ``epochs`` rounds of :func:`draw_pairs`, and then fit the regression.

        The loss is the squared difference of cosine and 1 or 0, ``CosineSimilarityLoss`` of ``sentence-transformers``,
        as in SetFit. With no epochs, the encoder stays as it is.
        """
        pairs = draw_pairs([example.places[0] for example in examples], options.epochs, options.seed)
        trained = TrainingResult(0, 0, 0.0, [])
        if pairs:
            rows = [
                {"sentence1": examples[first].text, "sentence2": examples[second].text, "label": same}
                for first, second, same in pairs
            ]
            loss = import_sentence_transformers().sentence_transformer.losses.CosineSimilarityLoss(self.head.model)
            own = {"passes": 1, "distinct": False, **training}
            trained = EncoderTraining(self.head, rows, loss, options, precision, **own).run()
        self.head.fit(examples)
        return trained
