"""Texts with a label and an auxiliary label, learned together: the satisfaction and the dialogue act of each turn.

After USDA (Deng et al., WWW 2022). A text can be read with the texts before it in its group, such as a dialogue.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.device import Precision
from acclimate.base.errors import UserError, first_line, warn_once
from acclimate.cards.card import AUXILIARY_FILE
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import Row, column_names, is_missing, short_place
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.scoring import classification_metrics
from acclimate.models.checkpoints import UNREADABLE
from acclimate.models.saving import find_file
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.tasks.head_model import check_finite
from acclimate.tasks.interfaces import Answer, EvaluationResult, ResolvedOptions
from acclimate.tasks.kinds.classification.classifier import (
    Classification,
    ClassificationLearner,
    Classifier,
    TextPredictor,
    load_classifier,
)
from acclimate.tasks.kinds.classification.data import Example, Task, build_task, sort_labels
from acclimate.tasks.kinds.classification.labels import label_name, plain_value
from acclimate.tasks.loading import last_layer
from acclimate.tasks.options import MAX_CONTEXT
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.sources import LABEL_NAMES, Tables, select_columns

AUXILIARY_NAMES = ("auxiliary", "auxiliary_label", "dialogue_act", "dialog_act")
"""Columns of the auxiliary label, in lower case."""
ExampleT = TypeVar("ExampleT", bound=Example)


@dataclass(frozen=True, slots=True)
class JointExample(Example):
    """A text with a label and perhaps an auxiliary label."""

    _: KW_ONLY
    auxiliary: int | None = None
    """Index of the auxiliary label in :attr:`JointTask.auxiliary_labels`; None if it has none."""
    before: tuple[str, ...] = ()
    """The texts before it in its group, the last one first."""


@dataclass(frozen=True, repr=False)
class JointTask(Task):
    """A classification task with auxiliary labels."""

    task_kind: ClassVar[str] = "joint"

    _: KW_ONLY
    auxiliary_labels: list[str] = field(default_factory=list)
    context: int = 0
    """Texts of the group that are read before each text."""


def texts_before(texts: Sequence[Any], groups: Sequence[str | None]) -> list[tuple[str, ...]]:
    """Return the texts before each text that are of the same group; what is blank or no string is left out.

    The last one is the first, so that truncation removes the earliest.
    """
    known: dict[str | None, deque[str]] = defaultdict(lambda: deque(maxlen=MAX_CONTEXT))
    found = []
    for text, group in zip(texts, groups, strict=True):
        found.append(tuple(known[group]))
        if group is not None and isinstance(text, str) and text.strip():
            known[group].appendleft(text)
    return found


def in_context(example: ExampleT, before: Sequence[str], context: int) -> ExampleT:
    """Return an example with as many texts before it as its second text."""
    return replace(example, text_pair="\n".join(before[:context]))


class TwoHeads(nn.ModuleList):
    """The last layer of a classifier and the one of the auxiliary labels; returns both logits, concatenated."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., width) to (..., classes + auxiliary classes)."""
        return torch.cat([layer(hidden) for layer in self], -1)


@dataclass
class JointClassifier(Classifier):
    """A classifier with a second last layer, which is saved in a file of its own.

    L = CE(label) + weight CE(auxiliary label), means over texts; the second is 0 for a text without such a label.

    Attributes:
        names: The auxiliary labels.
        context: Texts of the group that are read before each text.
        weight: Factor of the loss of the auxiliary labels.
    """

    targets: ClassVar[tuple[str, ...]] = ("labels", "auxiliary")

    names: list[str] = field(default_factory=list)
    context: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Add the second layer."""
        super().__post_init__()
        self._place, main = last_layer(self.model)
        self.auxiliary = nn.Linear(main.in_features, len(self.names))
        nn.init.normal_(self.auxiliary.weight, std=getattr(self.model.config, "initializer_range", 0.02))
        nn.init.zeros_(self.auxiliary.bias)
        self._heads = TwoHeads([main, self.auxiliary])
        self.model.set_submodule(self._place, self._heads)

    def features(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the model inputs of each example with both labels; see :meth:`Classifier.features`."""
        known = [getattr(example, "auxiliary", None) for example in examples]
        return [
            {**row, "auxiliary": IGNORE_INDEX if number is None else number}
            for row, number in zip(super().features(examples), known, strict=True)
        ]

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Any:
        """Return the output with the logits of both heads and, if the inputs have targets, the joint loss."""
        output: Any = model(**{name: value for name, value in inputs.items() if name not in self.targets})
        if "labels" in inputs:
            main, other = self._divide(output.logits.float())
            labels, known = inputs["labels"], inputs["auxiliary"]
            summed = nn.functional.cross_entropy(other, known, ignore_index=IGNORE_INDEX, reduction="sum")
            output.loss = nn.functional.cross_entropy(main, labels) + self.weight * summed / len(labels)
        return output

    def answer_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the logits of the labels (rows, classes)."""
        return self._divide(logits)[0]

    def both(self, examples: Sequence[Any], precision: Precision) -> tuple[Tensor, Tensor]:
        """Return the probabilities of the labels and of the auxiliary labels: (examples, classes) each.

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        logits = self.predict(self.features(examples), precision)
        check_finite(logits)
        width = int(self.model.config.num_labels or 0) + len(self.names)
        main, other = self._divide(torch.stack(logits) if logits else torch.empty(0, width))
        return main.softmax(-1), other.softmax(-1)

    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the probabilities of the labels."""
        return self.both(examples, precision)[0]

    def save(self, folder: Path, name: Path | None = None) -> None:
        """Write the classifier of the labels, which plain ``transformers`` loads, and the second layer next to it."""
        self.model.set_submodule(self._place, self._heads[0])
        super().save(folder, name)
        self.model.set_submodule(self._place, self._heads)
        layer = {name: value.detach().cpu() for name, value in self.auxiliary.state_dict().items()}
        save_file(layer, folder / AUXILIARY_FILE, {"labels": json.dumps(self.names), "context": str(self.context)})

    def _divide(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits[..., : -len(self.names)], logits[..., -len(self.names) :]


def read_auxiliary(path: str | Path) -> tuple[dict[str, Tensor], list[str], int] | None:
    """Return the second layer of a saved model, its labels, and the context that it reads; None if it has none.

    Raises:
        UserError: If the file is damaged.
    """
    if (file := find_file(str(path), AUXILIARY_FILE)) is None:
        return None
    try:
        with safe_open(file, "pt") as stored:
            about = stored.metadata()
        return load_file(file), json.loads(about["labels"]), int(about["context"])
    except UNREADABLE as error:
        raise UserError(f"'{file}' is damaged ({first_line(error)}); fine-tune the model again.") from error


class JointLearner(ClassificationLearner):
    """A classifier that learns both labels."""

    head: JointClassifier
    task: JointTask

    def configure(self, options: Any) -> None:
        """Take the weight of the auxiliary labels."""
        self.head.weight = options.auxiliary_weight

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Predict a split; the metrics of the auxiliary labels are over the texts that have one."""
        examples: list[JointExample] = getattr(self.task, split)
        main, other = self.head.both(examples, precision)
        result = self.evaluate(split, main)
        best = zip(examples, other.argmax(1).tolist(), strict=True)
        if found := [(one.auxiliary, number) for one, number in best if one.auxiliary is not None]:
            gold, predicted = map(list, zip(*found, strict=True))
            metrics = classification_metrics(gold, predicted, self.head.names)
            result.metrics.update({f"auxiliary_{name}": metrics[name] for name in ("accuracy", "macro_f1")})
        return result


class JointPredictor(TextPredictor):
    """A classifier that predicts both labels."""

    head: JointClassifier

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Example | None]:
        """Return the text of each row, with the texts before it in its group.

        Raises:
            UserError: If the model reads these, and no group is known.
        """
        found = super().read(rows, options)
        if not self.head.context:
            return found
        groups, _ = self.groups(rows, options)
        check_groups(groups, "The data")
        before = texts_before([None if one is None else one.text for one in found], groups)
        return [one and in_context(one, past, self.head.context) for one, past in zip(found, before, strict=True)]

    def answer(self, examples: Sequence[Example], precision: Precision) -> list[Answer]:
        """Return both labels, each with its probability."""
        main, other = self.head.both(examples, precision)
        best = other.max(1)
        return [
            Answer({**cells, "auxiliary": self.head.names[number], "auxiliary_probability": share}, value)
            for (cells, value), number, share in zip(
                self.name_classes(main), best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]


def check_groups(groups: Sequence[str | None], what: str) -> None:
    """Check that some group is known.

    Raises:
        UserError: If none is.
    """
    if all(group is None for group in groups):
        raise UserError(
            f"{what} does not say which texts follow each other, as 'context' needs; name the column of the dialogue "
            "or document with --group-column."
        )


@TASK_KINDS.register(
    "joint", summary="a label and an auxiliary label per text, such as the act of a turn, learned together"
)
class Joint(Classification):
    """The kind of tables with a column of :data:`AUXILIARY_NAMES`."""

    fallback: ClassVar[bool] = False
    distillation: ClassVar[tuple[str, ...]] = ()

    def matches_table(self, rows: Sequence[Row], options: ReadingOptions) -> bool:
        """Return whether rows have an auxiliary label, and another column whose name is given or usual is the label.

        Else an auxiliary label alone would be learned next to what merely looks like a label, such as a number.
        """
        column, named = find_auxiliary(rows), options.label_column
        usual = any(name.lower() in LABEL_NAMES for name in column_names(rows))
        return column is not None and (usual if named is None else named != column)

    def read_tables(self, tables: Tables, name: str, options: ReadingOptions, path: Path | None) -> JointTask:
        """Read the task. Rows without an auxiliary label are kept; rows without a label are read as context alone."""
        rows = tables["train"].rows
        if (column := find_auxiliary(rows)) is None:
            raise UserError(f"{rows[0][0]}: no column of an auxiliary label; call it '{AUXILIARY_NAMES[0]}'.")
        given = {where: row.get(column) for table in tables.values() for where, row in table.rows}
        # Without the column, so that it is not taken for the label.
        others: Tables = {}
        for split, table in tables.items():
            rows = [(where, {key: cell for key, cell in row.items() if key != column}) for where, row in table.rows]
            others[split] = replace(table, rows=rows)
        kind = f"{self.name}, with auxiliary labels in '{column}'"
        selected = select_columns(others, name, kind, options)
        past: dict[str, tuple[str, ...]] = {}
        for own in selected.rows.values():
            found = texts_before([row.get("text") for _, row in own], [selected.groups[where] for where, _ in own])
            past |= {where: before for (where, _), before in zip(own, found, strict=True)}
        known: dict[str, tuple[str | None, tuple[str, ...]]] = {}

        def read(row: Row) -> Row:
            value = plain_value(row[0], given[row[0]])
            known[short_place(row[0])] = None if is_missing(value) else label_name(row[0], value), past[row[0]]
            return row

        kept, unlabelled = {}, 0
        for split, own in selected.rows.items():
            labelled = [row for row in own if not is_missing(row[1].get("label"))]
            kept[split], unlabelled = selected.left.read(split, labelled, read), unlabelled + len(own) - len(labelled)
        if unlabelled:
            warn_once(f"Rows of the task '{name}' without a label, which are read as context alone: {unlabelled:,}.")
        task = build_task(name, selected._replace(rows=kept), path, options.split_seed, options.merge_labels)
        if task.multi_label:
            raise UserError(f"A task of the kind 'joint' has one label per text, and '{name}' has lists of labels.")
        return _with_auxiliary(task, known)

    def configured(self, task: JointTask, given: Mapping[str, Any]) -> JointTask:
        """Return the task with the context that each text is read with.

        Raises:
            UserError: If the rows are pairs, or no group is known.
        """
        context = given.get("context") or 0
        if context in (0, task.context):
            return task
        if task.is_pair:
            raise UserError(f"'context' needs single texts, and '{task.name}' has pairs of texts; remove it.")
        check_groups([example.group for example in task.train], f"The task '{task.name}'")
        splits: dict[str, Any] = {
            split: [in_context(one, one.before, context) for one in getattr(task, split)] for split in SPLITS
        }
        return replace(task, context=context, **splits)

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint has a layer of auxiliary labels."""
        return find_file(str(path), AUXILIARY_FILE) is not None

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> JointPredictor:
        """Load a classifier with its second layer."""
        plain = super().predictor(path, max_length, device)
        found: Any = read_auxiliary(path)
        head = JointClassifier(plain.head.model, plain.head.tokenizer, plain.head.max_length, *found[1:])
        head.auxiliary.load_state_dict(found[0])
        return JointPredictor(head, plain.labels)

    def is_model_of(self, path: str | Path, task: Any) -> bool:
        """Return whether a checkpoint is a classifier of both labels, in their order, that reads the same context."""
        found = read_auxiliary(path)
        same = found is not None and found[1:] == (task.auxiliary_labels, task.context)
        return same and super().is_model_of(path, task)

    def learner(self, model: str | Path, task: Any, options: ResolvedOptions, device: torch.device) -> JointLearner:
        """Load a checkpoint as a classifier of both labels; a second layer of the same labels is kept."""
        plain = load_classifier(model, task.labels, options.max_length, device)
        head = JointClassifier(plain.model, plain.tokenizer, plain.max_length, task.auxiliary_labels, task.context)
        if (found := read_auxiliary(model)) and found[1] == head.names:
            head.auxiliary.load_state_dict(found[0])
        return JointLearner(head, task, options.negative)

    def contrastive_learner(self, model: str | Path, task: Any, options: Any, device: torch.device) -> Any:
        """Refuse: pairs of examples have no second label."""
        return TaskKind.contrastive_learner(self, model, task, options, device)


def find_auxiliary(rows: Sequence[Row]) -> str | None:
    """Return the column of the auxiliary label; None for none."""
    return next((column for column in column_names(rows) if column.lower() in AUXILIARY_NAMES), None)


def _with_auxiliary(task: Task, known: Mapping[str, tuple[str | None, tuple[str, ...]]]) -> JointTask:
    """Return a task with the auxiliary label of each row, and the texts before it.

    Raises:
        UserError: If train has fewer than two labels.
    """
    labels = sort_labels({label for one in task.train if (label := known[one.row][0]) is not None})
    if len(labels) < 2:
        raise UserError(f"The train rows of '{task.name}' have {len(labels)} auxiliary labels; a task needs two.")
    numbers = {label: number for number, label in enumerate(labels)}
    evaluated = (known[one.row][0] for one in chain(task.dev, task.test))
    if unknown := [label for label in evaluated if label is not None and label not in numbers]:
        warn_once(
            f"Auxiliary labels of dev and test of '{task.name}' that do not occur in train, such as '{unknown[0]}', "
            f"are not scored: {len(unknown):,}."
        )

    def add(one: Example) -> JointExample:
        label, before = known[one.row]
        own = {part.name: getattr(one, part.name) for part in fields(one)}
        return JointExample(**own, auxiliary=None if label is None else numbers.get(label), before=before)

    own = {part.name: getattr(task, part.name) for part in fields(task)}
    splits = {split: [*map(add, getattr(task, split))] for split in SPLITS}
    return JointTask(**own | splits, auxiliary_labels=labels)
