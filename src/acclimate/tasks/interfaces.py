"""The interfaces of labelled tasks and of the models that learn them, and the options of one training on a task.

The options have every default filled in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from acclimate.base.bounds import Count
from acclimate.base.device import Precision
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.options import Option, options, values
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import Row
from acclimate.data.task_kinds import find_task_kind, searched_texts
from acclimate.evaluation.embeddings import SentencePairs
from acclimate.evaluation.scoring import Scoring
from acclimate.models.checkpoints import load_config
from acclimate.tasks import recipe
from acclimate.tasks.examples import Examples
from acclimate.tasks.groups import find_grouping
from acclimate.tasks.options import SupervisedOptions
from acclimate.tasks.readers import SPLITS

LabelledTask = Examples[Any]
"""A task of any kind."""


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a model on a split, with the gold answer and the prediction for each item, as plain values.

    ``gold`` and ``predicted`` have the form that the scoring of the task reads.
    """

    metrics: dict[str, Any]
    gold: list[Any]
    predicted: list[Any]
    probabilities: list[Any]
    """Probabilities or scores of each prediction; written to ``predictions.jsonl``, but not stored by studies."""


class Learner(ABC):
    """A model with the head of a task, and the task that it learns."""

    negative: Sequence[str] = ()
    """Labels that mean "none of these"."""

    def __init__(self, head: Any, task: Any) -> None:
        """Set the model and its task."""
        self.head, self.task = head, task
        self.general: SentencePairs | None = None
        """Pairs on which a model with embeddings of sentences is measured before and after training."""
        self.hard_negatives: Literal["bm25", "model"] | None = None
        """What ranks the documents from which hard negatives of a retrieval model are drawn; None for none."""
        self.adapter: Any = None
        """Low-rank adapter that such a model trains; None for all weights."""

    def rows(self, examples: Sequence[Any]) -> Sequence[dict[str, Any]]:
        """Return model inputs with their targets, unpadded; an example can become several rows."""
        found: Sequence[dict[str, Any]] = self.head.features(examples)
        return found

    @abstractmethod
    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Predict the ``"dev"`` or ``"test"`` split of the task and score the predictions."""

    def train(self, *args: Any, **options: Any) -> Any:
        """Train the model, if the kind has ``own_training``.

        The arguments are train examples, the resolved options and precision, and the keyword arguments of
        :func:`acclimate.tasks.trainer.train`; the result is that of this function.
        """
        raise NotImplementedError(f"{type(self).__name__} is trained by acclimate.tasks.trainer.train")

    def configure(self, options: Any) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Take the options of ``finetune`` that only its kind has."""

    def start(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Measure before training what the trained model is compared with."""

    @property
    def templates(self) -> Sequence[str]:
        """The usual prompts of a model that can answer without training, the first of which it has; none without."""
        return ()

    def use_prompt(self, template: str, solved: Sequence[Any]) -> None:
        """Answer with a prompt from now on, which begins with solved examples.

        Raises:
            UserError: If the template lacks a place for a part of the task.
        """
        raise UserError(f"A model of the task '{self.task.name}' has no prompt; remove the template and the shots.")

    def item_scores(self, result: EvaluationResult) -> Sequence[float]:
        """Return the score of each item of a result, by which a prompt is chosen."""
        return [float(one == other) for one, other in zip(result.gold, result.predicted, strict=True)]

    def finish(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Bring the trained model into the form in which it is evaluated and saved."""

    def readable(self, value: Any) -> Any:
        """Return an entry of ``gold`` or ``predicted`` in a readable form, such as the name of a class."""
        return value


class Answer(NamedTuple):
    """The answer of a model to one row.

    Attributes:
        cells: New columns of the row, by name.
        value: What is compared with gold answers, as plain values that name classes.
    """

    cells: dict[str, Any]
    value: Any


class Predictor(ABC):
    """A trained model of a kind of task, which answers rows that may have no gold answers.

    Attributes:
        head: The model.
        main: The new column that holds the answer; the others say how sure the model is of it.
        scored_by: The scoring of the answers, if they have the form that it reads.
        ranks: Whether it can rank passages.
        labels: Its classes, or types of entities; empty if there is no fixed set of answers.
    """

    main: ClassVar[str]
    scored_by: ClassVar[type[Scoring]]
    ranks: ClassVar[bool] = False
    labels: Sequence[str] = ()

    def __init__(self, head: Any) -> None:
        self.head = head
        self.reading: Mapping[str, Any] = {}
        """Options with which the rows of its task were read."""
        self.kind: Any = None

    @property
    def multi_label(self) -> bool:
        """Whether an answer can have any number of classes."""
        return bool(getattr(self.head, "multi_label", False))

    @abstractmethod
    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Any]:
        """Return the example of each row; None for a row that has no text.

        Raises:
            UserError: If the columns of the texts cannot be determined.
        """

    @abstractmethod
    def answer(self, examples: Sequence[Any], precision: Precision) -> list[Answer]:
        """Return the answer to each example."""

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[Any] | None:
        """Return the gold answer of each row, or None where it has none; None if no row has one."""
        return None

    def groups(self, rows: Sequence[Row], options: ReadingOptions) -> tuple[Sequence[str | None], str]:
        """Return the group of each row, as in a task of this kind, and what a group is."""
        taken = (options.text_column, options.pair_column, options.label_column)
        grouping = find_grouping("data", {"": rows}, options.group_column, taken)
        return [grouping.of(row) for _, row in rows], grouping.name

    def named(self, value: Any) -> list[str]:
        """Return the classes that a gold answer names, of those that should be among :attr:`labels`."""
        return []

    def scoring(self, values: Sequence[list[Any]], groups: Mapping[str, Any]) -> tuple[Scoring, list[list[Any]]]:
        """Return how answers are scored, and answers in the form that the scoring reads.

        Args:
            values: The gold answers of rows, and the answers of each model, as :attr:`Answer.value`.
            groups: The groups of the rows, as fields of the scoring.
        """
        return self.scored_by(**groups), list(values)


EVALUATION_SPLITS = ("dev", "test")
"""The splits that a model is evaluated on, or selected with."""


def evaluation_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return the texts on which a model is evaluated, for each existing split: ``"dev"``, ``"test"``.

    Args:
        task: A loaded task.

    Returns:
        Each distinct text once, in the order of the file; for a question both the question and its passage, or the
        question with each of its reference answers.
    """
    found = {split: searched_texts(task, split) for split in EVALUATION_SPLITS}
    return {split: texts for split, texts in found.items() if texts}


def item_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return what identifies the items of each existing split: ``"train"``, ``"dev"``, ``"test"``.

    For a text this is the text itself. For a pair it is both texts, joined, since the same aspect or hypothesis with
    another sentence is another item. For a question it is the passage, since the same question can be asked about many
    passages.

    Args:
        task: A loaded task.

    Returns:
        Each distinct text once, in the order of the file.
    """
    kind = find_task_kind(task)
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        texts = dict.fromkeys(kind.item_text(example) for example in getattr(task, split, ()))
        if kept := [text for text in texts if text.strip()]:
            found[split] = kept
    return found


@options
class ResolvedOptions(SupervisedOptions):
    """The options that trainer and learners read: those of a command, with the defaults of the task filled in."""

    _: KW_ONLY
    epochs: Annotated[int, Option("Passes over the train split.")]
    learning_rate: Annotated[float, Option("Peak learning rate.")]
    max_length: Annotated[Count, Option("Maximum tokens per example, or per window of a passage.")]
    metric: Annotated[str, Option("Metric that selects the best epoch on the dev split.")]
    negative: Annotated[tuple[str, ...], Option("Labels that mean 'none of these'.")] = ()


def learns_pairs(task: Any, given: Any) -> bool:
    """Return whether a training with these options learns embeddings from pairs of texts."""
    return find_task_kind(task).own_training or bool(getattr(given, "contrastive", False))


def find_width(model: str | Path | None) -> int | None:
    """Return the width of the hidden states of a model; None if its configuration does not say it."""
    if model is None:
        return None
    width = getattr(load_config(model).get_text_config(), "hidden_size", None)
    return width if isinstance(width, int) else None


def count_train_rows(task: Any, few_shot: int | None) -> int:
    """Return the number of train rows of a task, or about how many are drawn of them."""
    rows = len(task.train)
    return rows if few_shot is None else min(rows, few_shot * max(1, len(getattr(task, "labels", ()) or ())))


def resolve_options(
    given: SupervisedOptions, task: Any, model: str | Path | None = None
) -> tuple[ResolvedOptions, Scoring]:
    """Fill in the defaults of a task and a model, and check the options against the task.

    Args:
        given: The options of ``finetune`` or ``distill``.
        task: The task (:class:`acclimate.tasks.interfaces.LabelledTask`).
        model: The model, whose width the learning rate depends on; None if nothing is trained.

    Returns:
        The options, and how predictions on the test split are scored.

    Raises:
        UserError: If the task has no such metric or label, or lacks the dev split or the classes that an option needs.
    """
    negative = tuple(given.negative or ())
    scoring = task.scoring(negative=negative)
    contrastive = learns_pairs(task, given)
    rows = count_train_rows(task, given.few_shot)
    usual = {
        "epochs": recipe.default_epochs(rows, given.batch_size, contrastive=contrastive),
        "learning_rate": recipe.default_rate(find_width(model), contrastive=contrastive),
    }
    resolved = ResolvedOptions(
        **values(given, SupervisedOptions)
        | {name: value for name, value in usual.items() if getattr(given, name) is None}
        | {
            "max_length": task.default_length if given.max_length is None else given.max_length,
            "metric": scoring.metrics[0] if given.metric is None else given.metric,
            "negative": negative,
        }
    )
    if given.select == "dev" and not task.dev:
        raise UserError(f"'select' is 'dev', but the task '{task.name}' has no dev split; use 'last'.")
    metrics = (task.scoring("dev", negative) if given.select == "dev" else scoring).metrics
    if resolved.metric not in metrics:
        raise unknown_name_error("metric", resolved.metric, metrics)
    kind = find_task_kind(task)
    if not (resolved.epochs or contrastive or kind.zero_shot):
        raise UserError(f"'epochs' must be at least 1 for the task '{task.name}', whose head needs training.")
    if given.confidence_penalty and not task.labels:
        raise UserError(f"'confidence_penalty' does not apply to the task '{task.name}', which has no classes.")
    return resolved, scoring
