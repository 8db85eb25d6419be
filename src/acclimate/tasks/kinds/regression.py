"""Regression and similarity: a number for each text or pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from acclimate.base.device import Precision
from acclimate.base.errors import UserError
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import Row, RowError, column_names, is_missing, short_place
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.embeddings import SentencePairs
from acclimate.evaluation.regression import RegressionScoring, regression_metrics
from acclimate.evaluation.scoring import Scoring
from acclimate.models.checkpoints import load_config
from acclimate.tasks.examples import Examples, TextExample
from acclimate.tasks.groups import number_known_groups
from acclimate.tasks.head_model import check_finite
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.classification.classifier import Classifier
from acclimate.tasks.kinds.classification.data import check_columns, parse_row
from acclimate.tasks.loading import load_with_head
from acclimate.tasks.probing import NumberProbe, Probe
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.sources import (
    LABEL_NAMES,
    SCORE_NAMES,
    Selected,
    Table,
    label_column,
    label_columns,
    read_texts,
    select_columns,
)
from acclimate.tasks.values import LARGEST, are_scores, label_like, read_number

STRATA, MIN_STRATUM = 10, 20
"""Splits are drawn from groups of rows with similar targets: at most this many, and about this many rows at least."""


@dataclass(frozen=True, slots=True)
class NumberExample(TextExample):
    """A text, or a pair of texts, with a number."""

    target: float

    @staticmethod
    def strata(examples: Sequence[NumberExample]) -> list[list[int]]:
        """Return for each example its group of similar targets."""
        count = max(1, min(STRATA, len(examples) // MIN_STRATUM))
        ends = np.quantile([example.target for example in examples], np.linspace(0, 1, count + 1)[1:-1])
        return [[int(np.searchsorted(ends, example.target))] for example in examples]


@dataclass(frozen=True, repr=False)
class RegressionTask(Examples[NumberExample]):
    """A regression task: three splits of texts, or pairs of texts, with a number each."""

    task_kind: ClassVar[str] = "regression"
    least_examples: ClassVar[int] = 2  # the targets are scaled by their spread
    default_length: ClassVar[int] = 128
    drawn_by: ClassVar[str] = "low and high numbers in proportion"
    scored_by: ClassVar[type[Scoring]] = RegressionScoring
    no_negative: ClassVar[str] = "has numbers as labels"


def holds_numbers(rows: Sequence[Row], options: ReadingOptions) -> bool:
    """Return whether the labels of rows are numbers, at least one of them with a fraction.

    Up to half of them may be something else, as then reading the rows names the first of these; classes with a
    fraction are refused, too.

    The column of the labels is the named one, ``label``, the only one with a usual name, or the only one that can be.
    """
    names = column_names(rows)
    columns = label_columns(names, options.label_column, LABEL_NAMES, SCORE_NAMES) or label_like(rows, names)
    if len(columns) != 1:
        return False
    return are_scores([row.get(columns[0]) for _, row in rows])


def build_task(name: str, selected: Selected, path: Path | None, split_seed: int) -> RegressionTask:
    """Check the rows of all splits, and draw missing splits from train.

    Args:
        name: Name of the task.
        selected: The rows of each split, with the columns ``text``, ``label`` and perhaps ``text_pair``, and their
            groups.
        path: Where the task is, if it is a file or folder.
        split_seed: Random seed of splits that are drawn.

    Raises:
        UserError: If too many rows cannot be used, or all targets of train are equal.
    """
    pair = check_columns(selected.rows)
    examples = {
        split: selected.left.read(
            split, selected.rows[split], lambda row: _read_example(*row, pair, selected.groups[row[0]])
        )
        for split in SPLITS
    }
    selected.left.report(examples)
    if len({example.target for example in examples["train"]}) < 2:
        raise UserError(f"All train rows of the task '{name}' have the same number, so there is nothing to learn.")
    return RegressionTask.divided(name, examples, split_seed, group_name=selected.group_name, path=path)


def _read_example(where: str, row: dict[str, Any], pair: bool, group: str | None) -> NumberExample:
    parsed, label = parse_row(where, row, pair), row.get("label")
    if is_missing(label):
        raise RowError(where, "without a label")
    if (target := read_number(label)) is None:
        what = (
            f"the label must be a number up to {LARGEST:g}, not {label!r:.40}; write 1010.5 without commas and units "
            "(classes need --task-kind classification)"
        )
        raise RowError(where, "whose label is no number", what)
    return NumberExample(parsed.text, parsed.second, target, group=group, row=short_place(where))


class Regressor(Classifier):
    """A sequence classification model with a single output, and its tokenizer.

    Attributes:
        scale: Unit of the output; the target is ``scale * output + shift``.
        shift: The target at an output of zero.
    """

    scale: float = 1.0
    shift: float = 0.0

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        inside = {id(module) for module in self.model.base_model.modules()}
        layers = [m for m in self.model.modules() if isinstance(m, nn.Linear) and m.out_features == 1]
        return [layer for layer in layers if id(layer) not in inside][-1]

    def _target(self, example: Any) -> float:
        return (example.target - self.shift) / self.scale

    @property
    def unit(self) -> tuple[float, float]:
        """Scale and shift."""
        return self.scale, self.shift

    def answer_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the numbers in the unit of the target: (rows, 1)."""
        return logits.float() * self.scale + self.shift

    def soft_target_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Return the mean squared distance in the unit of the output; numbers have no temperature."""
        return ((answers - teacher) / self.scale).square().mean()

    def rescale(self, scale: float, shift: float) -> None:
        """Change the unit of the output, so that the predictions of the model stay the same.

        Args:
            scale: The new scale.
            shift: The new shift; it must be the current one if the last layer has no bias.
        """
        with torch.no_grad():
            self.head.weight.mul_(self.scale / scale)
            if self.head.bias is not None:
                self.head.bias.mul_(self.scale).add_(self.shift - shift).div_(scale)
        self.scale, self.shift = scale, shift

    def values(self, examples: Sequence[NumberExample], precision: Precision) -> list[float]:
        """Return the predicted number for each example.

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        outputs = self.predict(self.features(examples), precision)
        check_finite(outputs)
        return [float(f"{float(output) * self.scale + self.shift:.7g}") for output in outputs]


@TASK_KINDS.register("regression", summary="a number per text or pair of texts, such as a similarity")
class Regression(TaskKind):
    """The kind of tables whose labels are numbers, at least one of them with a fraction."""

    distillation: ClassVar[tuple[str, ...]] = ("boundary", "kl")

    matches_table = staticmethod(holds_numbers)

    def read_tables(
        self, tables: dict[str, Table], name: str, options: ReadingOptions, path: Path | None
    ) -> RegressionTask:
        """Read the task."""
        selected = select_columns(tables, name, self.name, options, (*LABEL_NAMES, *SCORE_NAMES))
        return build_task(name, selected, path, options.split_seed)

    def is_model_of(self, path: str | Path, task: RegressionTask) -> bool:
        """Return whether a checkpoint is a trained model of one number."""
        return self.reads(path, load_config(path), "")

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint is a trained model of one number."""
        return kind in ("", "regression") and _has_head(config)

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> NumberPredictor:
        """Load a model of one number."""
        loaded = load_with_head(AutoModelForSequenceClassification, path, {}, max_length, device, "regressor")
        return NumberPredictor(Regressor(*loaded))

    def answer(self, example: NumberExample, task: RegressionTask) -> str:
        """Return the number."""
        return f"{example.target:g}"

    def sentence_pairs(self, task: RegressionTask) -> SentencePairs | None:
        """Return the pairs of the test split with their scores; those of all splits if the file had only one."""
        examples = [*task.train, *task.dev, *task.test] if task.drawn else task.test
        if examples[0].text_pair is None:
            return None
        texts = ([example.text for example in examples], [str(example.text_pair) for example in examples])
        groups = number_known_groups(example.group for example in examples)
        return SentencePairs(task.name, *texts, [example.target for example in examples], groups)

    def probe(self, task: RegressionTask) -> Probe:
        """Return a probe of a number."""
        return NumberProbe()

    def learner(
        self, model: str | Path, task: RegressionTask, options: ResolvedOptions, device: torch.device
    ) -> RegressionLearner:
        """Load a checkpoint as a model of one number.

        The targets are scaled to mean 0 and standard deviation 1 of the train split, so that the learning rate does
        not depend on their unit; a last layer without bias, as in most decoders, is scaled only.
        """
        known = load_config(model)
        settings = {"num_labels": 1, "problem_type": "regression"}
        regressor = Regressor(
            *load_with_head(
                AutoModelForSequenceClassification, model, settings, options.max_length, device, "regressor"
            )
        )
        targets = np.asarray([example.target for example in task.train])
        shift = float(targets.mean()) if regressor.head.bias is not None else 0.0
        scale = float(np.sqrt(np.mean((targets - shift) ** 2))) or 1.0
        if _has_head(known):  # a trained head, whose output is in the unit of the target
            regressor.rescale(scale, shift)
        else:
            regressor.scale, regressor.shift = scale, shift
        return RegressionLearner(regressor, task)


def _has_head(config: PreTrainedConfig) -> bool:
    """Return whether a model is one of a single number."""
    return config.num_labels == 1 and any("ForSequenceClass" in name for name in config.architectures or ())


class NumberPredictor(Predictor):
    """A model of one number per text, or pair of texts."""

    main: ClassVar[str] = "score"
    scored_by: ClassVar[type[Scoring]] = RegressionScoring

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[NumberExample | None]:
        """Return the texts of each row."""
        return [None if texts is None else NumberExample(*texts, 0.0) for texts in read_texts(rows, options)]

    def answer(self, examples: Sequence[NumberExample], precision: Precision) -> list[Answer]:
        """Return the number of each example."""
        return [Answer({"score": value}, value) for value in self.head.values(examples, precision)]

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[float | None] | None:
        """Return the number of each row, or None where it has none."""
        column = label_column(rows, options, LABEL_NAMES, SCORE_NAMES)
        found = [None if column is None else read_number(row.get(column)) for _, row in rows]
        return found if any(value is not None for value in found) else None


class RegressionLearner(Learner):
    """A model of one number that learns a task."""

    head: Regressor
    task: RegressionTask

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Predict a split; return correlations, and errors in the unit of the target."""
        examples: list[NumberExample] = getattr(self.task, split)
        gold, predicted = [example.target for example in examples], self.head.values(examples, precision)
        return EvaluationResult(regression_metrics(gold, predicted), gold, predicted, [None] * len(gold))

    def finish(self) -> None:
        """Move scale and shift of the targets into the last layer, so that the saved model returns targets."""
        self.head.rescale(1.0, self.head.shift if self.head.head.bias is None else 0.0)
