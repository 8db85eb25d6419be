"""A model that answers questions: loading it, feeding it windows, and asking it for answers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.backbone.device import Precision, autocast
from acclimate.backbone.memory import micro_batch_tokens
from acclimate.backbone.shapes import padding_multiple
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.loading import exact_last_layer, load_with_head
from acclimate.tasks.loop import diverged
from acclimate.tasks.qa.data import Question, items
from acclimate.tasks.qa.decoding import Span, best_answers
from acclimate.tasks.qa.windows import Reading, Windows

ANSWER_TOKENS = 30
"""The longest answer that is looked for in a task whose answers are short; as in the scripts of BERT."""
ANSWER_SHARE = 0.95
"""Share of the training answers that must not be longer than the longest that is looked for."""
Ranked = list[tuple[str, float]]
"""Answers to a question, best first, each with the sum of its start and end logit."""


@dataclass
class Reader:
    """A question answering model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reading: Reading
    answer_tokens: int = ANSWER_TOKENS
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
        usual = int(np.quantile(lengths, ANSWER_SHARE, method="higher")) if lengths else 0
        self.answer_tokens = max(ANSWER_TOKENS, usual)
        return windows.keep_for_training(self.reading.empty, seed)

    def _windows(self, questions: Sequence[Question]) -> Windows:
        return Windows(questions, self.tokenizer, self.reading, self._segments)

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows on the right to the longest of them, or a little more, and make tensors of them."""
        return DataCollatorWithPadding(self._padding, pad_to_multiple_of=padding_multiple(self.model))(rows)

    def answers(self, questions: Sequence[Question], precision: Precision) -> list[Ranked]:
        """Return the best five answers to each item (see :func:`acclimate.tasks.qa.data.items`), in their order.

        Raises:
            UserError: If the model gives something that is not a number.
        """
        windows = self._windows(questions)
        logits = self._logits(windows, precision)
        own: dict[int, list[int]] = {}
        for number, window in enumerate(windows.windows):
            own.setdefault(window.question, []).append(number)
        ranked: list[Ranked] = []
        for places in items(questions).values():
            numbers = [number for place in places for number in own[place]]

            def text(span: Span, numbers: list[int] = numbers) -> str:
                return windows.text(numbers[span.window], span.first, span.last)

            starts, ends = zip(*(logits[number] for number in numbers), strict=True)
            ranked.append(best_answers(starts, ends, self.answer_tokens, text))
        return ranked

    @torch.inference_mode()
    def _logits(self, windows: Windows, precision: Precision) -> list[Tensor]:
        """Return start and end logits (2, tokens) of the passage tokens of each window, fp32 on the CPU."""
        result: list[Tensor] = [torch.empty(0)] * len(windows)
        self.model.eval()
        rows = [windows[place]["input_ids"] for place in range(len(windows))]
        with exact_last_layer(self.model):
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
            raise diverged()
        return result


def load_reader(path: str | Path, reading: Reading, device: torch.device) -> Reader:
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
    return Reader(model, tokenizer, replace(reading, max_length=length))
