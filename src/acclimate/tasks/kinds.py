"""The kinds of labelled tasks: how each is recognised, read and learnt. A new kind is one entry of :data:`KINDS`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.device import Precision
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.classification.classifier import Classification
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.qa import QuestionAnswering
from acclimate.tasks.readers import check_task_folder
from acclimate.tasks.result import EvaluationResult


class LabelledTask(Protocol):
    """What every task can do, whatever its examples are."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def kind(self) -> str:
        """A key of :data:`acclimate.evaluation.scoring.SCORINGS`."""

    @property
    def train(self) -> Sequence[Any]:
        """The examples to learn from."""

    @property
    def dev(self) -> Sequence[Any]:
        """The examples to choose weights by; there may be none."""

    @property
    def test(self) -> Sequence[Any]:
        """The examples to measure on."""

    @property
    def labels(self) -> list[str]:
        """The classes; none if the task has no fixed set of answers."""

    @property
    def default_length(self) -> int:
        """The tokens that are read of an example, or of a window of it, unless something else is said."""

    def fingerprint(self) -> str:
        """Return a hash of everything that can change a result."""

    def scoring(self, split: str = "test", negative: Sequence[str] | None = None) -> Scoring:
        """Return how predictions for a split are scored; raise UserError for ``negative`` where it has no sense."""

    def few_shot(self, count: int, seed: int) -> Sequence[Any]:
        """Draw a small train split, or raise UserError."""


class Learner(Protocol):
    """A model with the head that a kind of task needs."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def rows(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        """Return model inputs with their targets, not padded; an example may give several."""

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to a batch."""

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Predict the ``"dev"`` or ``"test"`` split of the task, and score that."""

    def readable(self, value: Any) -> Any:
        """Turn an entry of ``gold`` or ``predicted`` into what people read."""


class TaskKind(Protocol):
    """A kind of task, or several that share their files and their model."""

    def matches(self, folder: Path) -> bool:
        """Say whether a folder holds such a task."""

    def load(self, folder: Path, name: str) -> LabelledTask:
        """Read it; raise UserError naming the row that cannot be used."""

    def owns(self, task: LabelledTask) -> bool:
        """Say whether a loaded task is of this kind."""

    def learner(self, model: str | Path, task: Any, options: FinetuneOptions, device: torch.device) -> Learner:
        """Load a checkpoint for a task. New weights are drawn from torch's global generator."""


TASK_KINDS: list[TaskKind] = [QuestionAnswering(), Classification()]
"""The first that matches a folder reads it; classification comes last and takes whatever is left."""


def load_task(path: str | Path, *, name: str | None = None) -> Any:
    """Read a task folder with ``train``, ``test`` and, if there is one, ``dev``.

    A classification task: each is a ``.jsonl``, ``.csv``, ``.tsv`` (also ``.gz``) or ``.parquet`` file with the
    columns ``text``, ``label`` and, for pairs, ``text_pair``; other columns are ignored. ``dev`` may also be called
    ``validation`` or ``valid``. A label is a string, a whole number or a truth value. In a task of pairs every row
    has a second text, which may be empty; a first text may not.

    A multi-label task: every label is a list, which may be empty; a label that stands twice in a list counts once. If
    every row of a split has a ``document``, or an ``id`` that ends in ``_s`` and the number of a sentence, that split
    is scored by document, too.

    A task of questions: ``train.json``, ``test.json`` and perhaps ``dev.json`` (or ``.json.gz``) as SQuAD v1.1 has
    them; see :func:`acclimate.tasks.qa.load_qa`.

    Args:
        path: The folder.
        name: What to call the task; by default the name of the folder.

    Returns:
        An :class:`acclimate.tasks.Task`, or an :class:`acclimate.tasks.qa.QATask`.

    Raises:
        UserError: If the folder or a file is missing, a row is broken, or the labels cannot be learnt.
    """
    path = Path(path)
    check_task_folder(path)
    kind = next(kind for kind in TASK_KINDS if kind.matches(path))
    return kind.load(path, name or path.resolve().name)


def find_kind(task: LabelledTask) -> TaskKind:
    """Return the kind that a loaded task is of."""
    return next(kind for kind in TASK_KINDS if kind.owns(task))
