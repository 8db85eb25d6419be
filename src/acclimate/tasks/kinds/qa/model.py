"""Extractive question answering: the model, its training, and finding and evaluating its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering, PreTrainedModel

from acclimate.base.device import Precision
from acclimate.base.errors import UserError, warn_once
from acclimate.data.opening import detect_format
from acclimate.data.readers import holds_rows
from acclimate.data.reading import DEFAULT_READING, ReadingOptions
from acclimate.data.rows import Row, column_names
from acclimate.data.task_kinds import TASK_KINDS, TaskKind
from acclimate.evaluation.qa import MAX_RANK, QAScoring, normalize_bioasq, qa_metrics
from acclimate.evaluation.scoring import Scoring
from acclimate.models.checkpoints import load_config
from acclimate.models.kinds import class_names
from acclimate.tasks.head_model import HeadModel, check_finite
from acclimate.tasks.interfaces import Answer, EvaluationResult, Learner, Predictor, ResolvedOptions
from acclimate.tasks.kinds.qa.data import (
    QATask,
    Question,
    answer_texts,
    find_columns,
    gold_answers,
    group_by_item,
    group_questions,
    holds_questions,
    item_of,
    load_qa,
    read_questions,
    read_squad_rows,
)
from acclimate.tasks.kinds.qa.windows import WindowConfig, Windows
from acclimate.tasks.loading import load_with_head
from acclimate.tasks.sources import read_texts


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``first`` to ``last`` (inclusive) of a window, and the sum of their start and end logits."""

    window: int
    first: int
    last: int
    score: float


def best_answers(
    starts: Sequence[Tensor],
    ends: Sequence[Tensor],
    longest: int,
    text: Callable[[Span], str],
    count: int = MAX_RANK,
) -> list[tuple[str, float]]:
    """Find the answers with the highest start logit + end logit over all windows of a question.

    All spans are compared, not only those of the twenty best starts and ends, so the result is exact. Spans whose
    texts are equal after BioASQ's normalization (overlapping windows read a passage twice, and a name can occur
    several times) are one answer with the score of the best span. Spans with equal scores are ordered by window, then
    by start, then by length.

    Args:
        starts: For each window the start logits of its passage tokens only (tokens,).
        ends: The same for the end logits.
        longest: Maximum tokens per answer.
        text: Function that returns the text of a span; an empty text is not an answer.
        count: Number of answers to find.

    Returns:
        Text and score of each answer, best first; fewer if there are no more.
    """
    scores = _span_scores(starts, ends, longest)  # (windows, first tokens, lengths)
    _, width, lengths = scores.shape
    flat = scores.flatten()
    possible = int(flat.isfinite().sum())
    answers: dict[str, tuple[str, float]] = {}
    seen, size = 0, 8 * count
    while seen < possible and len(answers) < count:
        size = min(4 * size, possible)
        least = flat.topk(size).values[-1]
        places = (flat >= least).nonzero()[:, 0]  # includes all ties, in the order of position
        order = flat[places].argsort(descending=True, stable=True)
        for place in places[order][seen:].tolist():
            window, rest = divmod(place, width * lengths)
            first, extra = divmod(rest, lengths)
            span = Span(window, first, first + extra, float(flat[place]))
            found = text(span)
            if found and normalize_bioasq(found) not in answers:
                answers[normalize_bioasq(found)] = (found, span.score)
                if len(answers) == count:
                    break
        seen = len(places)
    return list(answers.values())


def _span_scores(starts: Sequence[Tensor], ends: Sequence[Tensor], longest: int) -> Tensor:
    """Return (windows, tokens, lengths): start[i] + end[i + l] at (window, i, l), or minus infinity past the end."""
    floor = float("-inf")
    start = nn.utils.rnn.pad_sequence(list(starts), batch_first=True, padding_value=floor)
    end = nn.utils.rnn.pad_sequence(list(ends), batch_first=True, padding_value=floor)
    if not start.shape[1]:
        return start[:, :, None]
    longest = min(longest, start.shape[1])
    later = nn.functional.pad(end, (0, longest - 1), value=floor).unfold(1, longest, 1)
    return torch.as_tensor(start[:, :, None] + later)


DEFAULT_MAX_ANSWER_TOKENS = 30
"""Maximum answer length for a task with short answers, as in BERT's scripts."""
ANSWER_LENGTH_QUANTILE = 0.95
"""Share of the training answers that must not exceed the maximum answer length."""
MAX_INEXACT_SHARE = 0.05
"""A warning is logged if tokens cannot express more than this share of the training answers."""
RankedAnswers = list[tuple[str, float]]
"""Answers to a question, best first, each with the sum of its start and end logits."""


@dataclass
class QAModel(HeadModel):
    """A question answering model with its tokenizer."""

    windowing: WindowConfig = field(default_factory=WindowConfig)
    max_answer_tokens: int = DEFAULT_MAX_ANSWER_TOKENS
    """Maximum tokens per answer."""

    targets: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    pads_right: ClassVar[bool] = True  # answers and passages are counted from the first token of a row

    def features(self, questions: Sequence[Question], seed: int) -> Windows:
        """Return the windows to train on, and set the maximum length of an answer.

        The maximum is 30 tokens, or the 95th percentile of the training answers if that is more: some domains have
        long answers, and an answer longer than the maximum can never be predicted.
        """
        windows = self._windows(questions)
        inexact = windows.inexact_answers()
        if len(inexact) > MAX_INEXACT_SHARE * len(questions):
            answer, covered = inexact[0]
            warn_once(
                f"{len(inexact):,} of {len(questions):,} training answers begin or end within a token, so they cannot "
                f"be predicted exactly: '{covered:.40}' instead of '{answer:.40}', for example. A model with shorter "
                "tokens may score higher."
            )
        lengths = [last - first + 1 for first, last in windows.answers()]
        usual = int(np.quantile(lengths, ANSWER_LENGTH_QUANTILE, method="higher")) if lengths else 0
        self.max_answer_tokens = max(DEFAULT_MAX_ANSWER_TOKENS, usual)
        return windows.subsample_empty_windows(self.windowing.empty, seed)

    def _windows(self, questions: Sequence[Question]) -> Windows:
        return Windows(questions, self.tokenizer, self.windowing, self.reads_segments)

    def answers(self, questions: Sequence[Question], precision: Precision) -> list[RankedAnswers]:
        """Return the five best answers to each item.

        Items have the order of :func:`acclimate.tasks.kinds.qa.data.group_by_item`.

        Raises:
            UserError: If the model returns NaN or infinity.
        """
        windows = self._windows(questions)
        logits = self._passage_logits(windows, precision)
        own: dict[int, list[int]] = {}
        for number, window in enumerate(windows.windows):
            own.setdefault(window.question, []).append(number)
        ranked: list[RankedAnswers] = []
        for places in group_by_item(questions).values():
            numbers = [number for place in places for number in own[place]]

            def text(span: Span, numbers: list[int] = numbers) -> str:
                return windows.text(numbers[span.window], span.first, span.last)

            starts, ends = zip(*(logits[number] for number in numbers), strict=True)
            ranked.append(best_answers(starts, ends, self.max_answer_tokens, text))
        return ranked

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Any:
        """Return start and end logits, and the mean cross-entropy over the tokens of each window, without padding."""
        output = model(**{name: value for name, value in inputs.items() if name not in self.targets})
        if self.targets[0] in inputs:
            padding = inputs["attention_mask"][:, None] == 0
            logits = self.read_output(output).float().masked_fill(padding, -torch.inf)
            wanted = torch.stack([inputs[name] for name in self.targets], 1)
            output.loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return output

    def read_output(self, output: Any) -> Tensor:
        """Return start and end logits (rows, 2, tokens)."""
        return torch.stack([output.start_logits, output.end_logits], 1)

    def answer_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the logits of all tokens as the start and as the end of each row: (2 x rows, tokens)."""
        return logits.flatten(0, 1)

    def _passage_logits(self, windows: Windows, precision: Precision) -> list[Tensor]:
        """Return start and end logits (2, tokens) of the passage tokens of each window, fp32 on the CPU."""
        logits = [
            values[:, window.offset : window.offset + window.stop - window.first]
            for values, window in zip(self.predict(windows, precision), windows.windows, strict=True)
        ]
        check_finite(logits)
        return logits


def load_qa_model(path: str | Path, windowing: WindowConfig, device: torch.device) -> QAModel:
    """Load any checkpoint as a question answering model in fp32, on the CPU.

    A new head is initialized from torch's global generator, so seed that first. A checkpoint that already has a
    question answering head keeps it.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        windowing: Lengths of rows and windows; ``max_length`` is reduced to what the model can read.
        device: Where the model will run, which determines how attention is computed.

    Raises:
        UserError: If there is no model, or its encoder weights are incomplete.
    """
    settings = {"num_labels": 2}  # start and end; class names of the checkpoint do not apply
    model, tokenizer, length = load_with_head(
        AutoModelForQuestionAnswering, path, settings, windowing.max_length, device, "question answering model"
    )
    return QAModel(model, tokenizer, length, replace(windowing, max_length=length))


@TASK_KINDS.register("qa", summary="extractive question answering, in the format of SQuAD v1.1")
class QuestionAnswering(TaskKind):
    """Questions in SQuAD format, or in tables and objects with the columns of SQuAD."""

    fixed_texts: ClassVar[bool] = True

    def matches(self, folder: Path) -> bool:
        """Return whether the train split holds questions."""
        return holds_questions(folder)

    def matches_source(self, source: Any) -> bool:
        """Return whether a file or an object holds questions."""
        return holds_questions(source)

    def read(self, folder: Path, name: str) -> QATask:
        """Read the task."""
        return load_qa(folder, name=name)

    def read_source(self, source: Any, name: str, options: ReadingOptions) -> QATask:
        """Read the task in any form; its columns have fixed names."""
        if options.text_column or options.pair_column or options.label_column:
            return super().read_source(source, name, options)  # raises
        seed, group = options.split_seed, options.group_column
        encoding, strict = options.encoding, options.strict
        return load_qa(source, name=name, split_seed=seed, group_column=group, encoding=encoding, strict=strict)

    def matches_table(self, rows: Sequence[Row], options: ReadingOptions) -> bool:
        """Return whether rows have answers with their place in a text."""
        return find_columns(rows, options) is not None

    read_tables = staticmethod(read_questions)

    def is_model_of(self, path: str | Path, task: QATask) -> bool:
        """Return whether a checkpoint has a trained head for questions."""
        return self.reads(path, load_config(path), "")

    def reads(self, path: str | Path, config: Any, kind: str) -> bool:
        """Return whether a checkpoint has a trained head for questions."""
        return any(name.endswith("ForQuestionAnswering") for name in class_names(config.architectures))

    def unlabelled_rows(self, source: Any, options: ReadingOptions) -> list[Row] | None:
        """Return the questions of a file in the format of SQuAD, with their contexts."""
        file = Path(source) if isinstance(source, str | Path) else None
        if file is None or not (file.is_file() and detect_format(file) == ".json" and holds_rows(file, "paragraphs")):
            return None
        return read_squad_rows(file, options.encoding)

    def predictor(self, path: str | Path, max_length: int, device: torch.device) -> QuestionPredictor:
        """Load a question answering model."""
        return QuestionPredictor(load_qa_model(path, WindowConfig(max_length=max_length), device))

    def answer(self, example: Question, task: QATask) -> str:
        """Return the first answer."""
        return example.answers[0].text

    def learner(self, model: str | Path, task: QATask, options: ResolvedOptions, device: torch.device) -> QALearner:
        """Load a checkpoint as a question answering model."""
        head = load_qa_model(model, WindowConfig(max_length=options.max_length), device)
        return QALearner(head, task, options.seed)


class QuestionPredictor(Predictor):
    """A question answering model."""

    main: ClassVar[str] = "answer"
    scored_by: ClassVar[type[Scoring]] = QAScoring

    def read(self, rows: Sequence[Row], options: ReadingOptions) -> list[Question | None]:
        """Return the question of each row about its context."""
        columns = {"question": options.text_column or "question", "context": options.pair_column or "context"}
        for what, column in columns.items():
            if not any(column in row for _, row in rows):
                listed = ", ".join(column_names(rows))
                flag = "--text-column" if what == "question" else "--pair-column"
                raise UserError(
                    f"No column '{column}' for the {what}; name it with {flag}. The columns are: {listed}."
                )
        named = [
            (where, {"text": row.get(columns["question"]), "text_pair": row.get(columns["context"])})
            for where, row in rows
        ]
        found: list[Question | None] = []
        for number, texts in enumerate(read_texts(named, DEFAULT_READING)):
            context = texts[1] if texts and texts[1] else ""
            found.append(Question(str(number), texts[0], context, ()) if texts and context.strip() else None)
        return found

    def answer(self, examples: Sequence[Question], precision: Precision) -> list[Answer]:
        """Return the best answer to each question, with the sum of its start and end logits."""
        found = []
        for ranked in self.head.answers(examples, precision):
            text, score = ranked[0] if ranked else ("", None)
            found.append(Answer({"answer": text, "score": score}, [text for text, _ in ranked]))
        return found

    def gold(self, rows: Sequence[Row], options: ReadingOptions) -> list[list[str] | None] | None:
        """Return the answers of each row."""
        found = [answer_texts(row.get(options.label_column or "answers")) for _, row in rows]
        return found if any(found) else None

    def groups(self, rows: Sequence[Row], options: ReadingOptions) -> tuple[Sequence[str | None], str]:
        """Return the article or passage of each row, if there is no other group."""
        items = [item_of(str(row.get("id", where))) for where, row in rows]
        return group_questions("data", rows, items, options.group_column, options.pair_column or "context")[:2]


class QALearner(Learner):
    """A question answering model that learns a task."""

    head: QAModel
    task: QATask

    def __init__(self, head: QAModel, task: QATask, seed: int) -> None:
        """Set a model and a task, and the random seed that selects training windows without an answer."""
        super().__init__(head, task)
        self.seed = seed

    def rows(self, examples: Sequence[Question]) -> list[dict[str, Any]]:
        """Return the windows to train on, and set the maximum length of an answer."""
        return list(self.head.features(examples, self.seed))

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Answer the questions of a split and score the answers.

        The prediction for an item is the texts of its best five answers; their scores take the place of
        probabilities.
        """
        questions: list[Question] = getattr(self.task, split)
        ranked = self.head.answers(questions, precision)
        gold, predicted = gold_answers(questions), [[text for text, _ in answers] for answers in ranked]
        scores = [[score for _, score in answers] for answers in ranked]
        return EvaluationResult(dict(qa_metrics(gold, predicted)), gold, predicted, scores)
