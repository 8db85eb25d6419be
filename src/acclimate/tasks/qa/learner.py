"""Extractive question answering as a kind of task: recognising it, learning it, measuring it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.backbone.device import Precision
from acclimate.evaluation.qa import qa_metrics
from acclimate.tasks.folders import SPLITS
from acclimate.tasks.options import Options
from acclimate.tasks.qa.data import FORMATS, QATask, Question, gold_answers, load_qa
from acclimate.tasks.qa.reader import Reader, load_reader
from acclimate.tasks.qa.windows import Reading
from acclimate.tasks.result import Measured


class QuestionAnswering:
    """The kind of a folder with ``train.json`` or ``train.json.gz``."""

    def matches(self, folder: Path) -> bool:
        """Say whether a split is a JSON file: other kinds of tasks have a row a line, or tables."""
        return any((folder / f"{stem}{ending}").is_file() for stem in SPLITS["train"] for ending in FORMATS)

    def load(self, folder: Path, name: str) -> QATask:
        """Read the task."""
        return load_qa(folder, name=name)

    def owns(self, task: Any) -> bool:
        """Say whether this is a task of questions."""
        return isinstance(task, QATask)

    def learner(self, model: str | Path, task: QATask, options: Options, device: torch.device) -> QALearner:
        """Load a checkpoint as a model that answers questions."""
        reader = load_reader(model, Reading(max_length=options.max_length), device)
        return QALearner(reader, task, options.seed)


class QALearner:
    """A reader that learns a task."""

    def __init__(self, reader: Reader, task: QATask, seed: int):
        """Take a reader, the task, and the seed that draws the windows without an answer."""
        self.reader, self.task, self.seed = reader, task, seed
        self.model, self.tokenizer = reader.model, reader.tokenizer

    def rows(self, examples: Sequence[Question]) -> list[dict[str, Any]]:
        """Return the windows to train on, and set how long answers may be."""
        return list(self.reader.features(examples, self.seed))

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to a batch."""
        return self.reader.collate(rows)

    def measure(self, split: str, precision: Precision) -> Measured:
        """Answer the questions of a split, and score that.

        What is predicted for a question are the texts of the best five answers; their scores stand for probabilities.
        """
        questions: list[Question] = getattr(self.task, split)
        ranked = self.reader.answers(questions, precision)
        gold, predicted = gold_answers(questions), [[text for text, _ in answers] for answers in ranked]
        scores = [[score for _, score in answers] for answers in ranked]
        return Measured(dict(qa_metrics(gold, predicted)), gold, predicted, scores)

    def readable(self, value: Any) -> Any:
        """Return texts as they are."""
        return value
