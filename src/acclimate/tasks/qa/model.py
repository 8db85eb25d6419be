"""From the logits of the windows of a question to its best answers.

A model that answers questions: loading it, feeding it windows, and asking it for answers.

Extractive question answering as a kind of task: recognising it, learning it, measuring it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.device import Precision, autocast
from acclimate.evaluation.qa import MAX_RANK, normalize_bioasq, qa_metrics
from acclimate.models.batching import micro_batch_tokens, padding_multiple
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.loading import fp32_last_layer, load_with_head
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.qa.data import FORMATS, QATask, Question, gold_answers, group_by_item, load_qa
from acclimate.tasks.qa.windows import WindowConfig, Windows
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.result import EvaluationResult
from acclimate.tasks.trainer import divergence_error


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``first`` to ``last`` (inclusive) of a window, and the sum of their start and end logit."""

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

    Every span is looked at, not only those of the twenty best starts and ends, so the result is exact. Spans whose
    texts BioASQ takes for equal (a passage is read twice where windows overlap, or says a name several times) are one
    answer with the score of the best. Of spans with equal scores the one in the earlier window, then the earlier and
    shorter one, comes first.

    Args:
        starts: For each window the start logits of its passage tokens, (tokens,); other tokens are left out.
        ends: The same of the end logits.
        longest: Tokens that an answer may have.
        text: The text of a span; an empty one is no answer.
        count: How many answers to find.

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
        places = (flat >= least).nonzero()[:, 0]  # ties at the end are all in, in the order of place
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
    """Return start[i] + end[i + l] at (window, i, l), minus infinity where there is no such token."""
    floor = float("-inf")
    start = nn.utils.rnn.pad_sequence(list(starts), batch_first=True, padding_value=floor)
    end = nn.utils.rnn.pad_sequence(list(ends), batch_first=True, padding_value=floor)
    if not start.shape[1]:
        return start[:, :, None]
    longest = min(longest, start.shape[1])
    later = nn.functional.pad(end, (0, longest - 1), value=floor).unfold(1, longest, 1)
    return torch.as_tensor(start[:, :, None] + later)


DEFAULT_MAX_ANSWER_TOKENS = 30
"""The longest answer that is looked for in a task whose answers are short; as in the scripts of BERT."""
ANSWER_LENGTH_QUANTILE = 0.95
"""Share of the training answers that must not be longer than the longest that is looked for."""
RankedAnswers = list[tuple[str, float]]
"""Answers to a question, best first, each with the sum of its start and end logit."""


@dataclass
class QAModel:
    """A question answering model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reading: WindowConfig
    max_answer_tokens: int = DEFAULT_MAX_ANSWER_TOKENS
    """Tokens that an answer may have."""

    def __post_init__(self) -> None:
        """Find out what inputs the model takes."""
        self._segments = getattr(self.model.config, "type_vocab_size", 0) > 1
        self._padding = copy(self.tokenizer)
        self._padding.padding_side = "right"  # answers and passages are counted from the first token of a row

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def features(self, questions: Sequence[Question], seed: int) -> Windows:
        """Return the windows to train on, and set how long answers may be.

        These are 30 tokens, or as many as 95 of 100 training answers have, if that is more: long answers are usual
        in some domains, and one that is longer than what is looked for is never found.
        """
        windows = self._windows(questions)
        lengths = [last - first + 1 for first, last in windows.answers()]
        usual = int(np.quantile(lengths, ANSWER_LENGTH_QUANTILE, method="higher")) if lengths else 0
        self.max_answer_tokens = max(DEFAULT_MAX_ANSWER_TOKENS, usual)
        return windows.subsample_empty_windows(self.reading.empty, seed)

    def _windows(self, questions: Sequence[Question]) -> Windows:
        return Windows(questions, self.tokenizer, self.reading, self._segments)

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows on the right to the longest of them, or a little more, and make tensors of them."""
        return DataCollatorWithPadding(self._padding, pad_to_multiple_of=padding_multiple(self.model))(rows)

    def answers(self, questions: Sequence[Question], precision: Precision) -> list[RankedAnswers]:
        """Return the five best answers to each item, in the order of :func:`acclimate.tasks.qa.data.group_by_item`.

        Raises:
            UserError: If the model gives something that is not a number.
        """
        windows = self._windows(questions)
        logits = self._logits(windows, precision)
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

    @torch.inference_mode()
    def _logits(self, windows: Windows, precision: Precision) -> list[Tensor]:
        """Return start and end logits (2, tokens) of the passage tokens of each window, fp32 on the CPU."""
        result: list[Tensor] = [torch.empty(0)] * len(windows)
        self.model.eval()
        rows = [windows[place]["input_ids"] for place in range(len(windows))]
        with fp32_last_layer(self.model):
            for batch in token_budget_batches(rows, micro_batch_tokens(self.model), padding_multiple(self.model)):
                inputs = self.collate([windows[place] for place in batch])
                del inputs["start_positions"], inputs["end_positions"]
                with autocast(precision, self.device):
                    output = self.model(**{name: value.to(self.device) for name, value in inputs.items()})
                both = torch.stack([output.start_logits, output.end_logits], 1).float().cpu()
                for place, values in zip(batch, both, strict=True):
                    window = windows.windows[place]
                    result[place] = values[:, window.offset : window.offset + window.stop - window.first].clone()
        if not all(bool(values.isfinite().all()) for values in result):
            raise divergence_error()
        return result


def load_qa_model(path: str | Path, reading: WindowConfig, device: torch.device) -> QAModel:
    """Load a checkpoint of any kind as a model that answers questions, in fp32, on the CPU.

    A new head is drawn from torch's global generator: seed it before. A checkpoint that already answers questions goes
    on from its head.

    Args:
        path: A model folder, or a name on the hub.
        reading: Lengths; ``max_length`` becomes what the model can read, if that is less.
        device: Where it is going to run, which decides how attention is computed.

    Raises:
        UserError: If there is no model, or its encoder is incomplete.
    """
    settings = {"num_labels": 2}  # start and end; the names of classes that the checkpoint may have are no use here
    model, tokenizer, length = load_with_head(
        AutoModelForQuestionAnswering, path, settings, reading.max_length, device, "model that answers questions"
    )
    return QAModel(model, tokenizer, replace(reading, max_length=length))


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

    def learner(self, model: str | Path, task: QATask, options: FinetuneOptions, device: torch.device) -> QALearner:
        """Load a checkpoint as a model that answers questions."""
        reader = load_qa_model(model, WindowConfig(max_length=options.max_length), device)
        return QALearner(reader, task, options.seed)


class QALearner:
    """A reader that learns a task."""

    def __init__(self, reader: QAModel, task: QATask, seed: int):
        """Take a reader, the task, and the seed that draws the windows without an answer."""
        self.reader, self.task, self.seed = reader, task, seed
        self.model, self.tokenizer = reader.model, reader.tokenizer

    def rows(self, examples: Sequence[Question]) -> list[dict[str, Any]]:
        """Return the windows to train on, and set how long answers may be."""
        return list(self.reader.features(examples, self.seed))

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to a batch."""
        return self.reader.collate(rows)

    def measure(self, split: str, precision: Precision) -> EvaluationResult:
        """Answer the questions of a split, and score that.

        What is predicted for a question are the texts of the best five answers; their scores stand for probabilities.
        """
        questions: list[Question] = getattr(self.task, split)
        ranked = self.reader.answers(questions, precision)
        gold, predicted = gold_answers(questions), [[text for text, _ in answers] for answers in ranked]
        scores = [[score for _, score in answers] for answers in ranked]
        return EvaluationResult(dict(qa_metrics(gold, predicted)), gold, predicted, scores)

    def readable(self, value: Any) -> Any:
        """Return texts as they are."""
        return value
