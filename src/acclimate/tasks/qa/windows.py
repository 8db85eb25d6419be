"""Questions and passages as rows of tokens: a long passage is read in windows that overlap."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.errors import UserError
from acclimate.tasks.qa.data import Question

TOKENIZER_BATCH_SIZE = 256
"""Texts: their tokens are kept as arrays, which take a fifth of what the tokenizer returns."""


@dataclass(frozen=True)
class WindowConfig:
    """How questions are read; all lengths in tokens.

    The defaults are those of BERT on SQuAD v1.1 (and of TAPTER's Table 4), but for the overlap, which its papers do
    not name: 128 is that of the scripts of ``transformers``.
    """

    max_length: int = 384
    """Of a row, special tokens included."""
    question: int = 64
    """The rest of a longer question is not read; nor more than half of what a row can hold."""
    overlap: int = 128
    """What neighbouring windows share, and so the longest answer that is sure to lie whole in one of them. At most
    half of a window."""
    empty: int = 2
    """Windows without the answer that are trained on, for each question and drawn anew for each seed. SQuAD has
    hardly a question with more; of a whole paper they are 20 for one with the answer, and would take the time."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The tokens of a text: ids, and the letters ``text[starts[i] : ends[i]]`` that each stands for."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token that touch the letters ``start`` to ``end``; None if none does."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens ``first`` to ``stop`` (exclusive) of the passage of a question."""

    question: int
    """Place in the list of questions."""
    first: int
    stop: int
    offset: int
    """Place in the row of the token ``first``."""
    answer: tuple[int, int] = (0, 0)
    """Places in the row of the first and the last token of the answer; the first token of all if it is not here."""


class RowLayout:
    """Where a tokenizer puts question, passage and special tokens in a row."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Learn it from a pair.

        Raises:
            UserError: If the tokenizer does not say which letters a token stands for.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; answering questions needs one.")
        pair = tokenizer("a", "b", return_token_type_ids=True)
        parts: list[int | None] = pair.sequence_ids(0)
        ids, types = pair["input_ids"], pair["token_type_ids"]
        question, after = parts.index(0), len(parts) - parts[::-1].index(0)
        passage, end = parts.index(1), len(parts) - parts[::-1].index(1)
        self._ids = [np.array(part, dtype=np.int32) for part in (ids[:question], ids[after:passage], ids[end:])]
        self._types = [types[:question], types[question], types[after:passage], types[passage], types[end:]]
        self.special = sum(map(len, self._ids))
        self.before_passage = len(self._ids[0]) + len(self._ids[1])

    def row(self, question: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Return the token ids of a row."""
        begin, middle, end = self._ids
        return np.concatenate([begin, question, middle, passage, end])

    def types(self, question: int, passage: int) -> list[int]:
        """Return the segment numbers of a row with so many tokens of question and passage."""
        begin, first, middle, second, end = self._types
        return [*begin, *[first] * question, *middle, *[second] * passage, *end]


class Windows(Sequence[dict[str, Any]]):
    """The rows of some questions, made when they are asked for; each passage is tokenised once."""

    def __init__(
        self, questions: Sequence[Question], tokenizer: PreTrainedTokenizerBase, reading: WindowConfig, segments: bool
    ) -> None:
        """Cut the passages.

        Args:
            questions: What to read.
            tokenizer: A fast one.
            reading: Lengths; ``max_length`` must be what the model can read.
            segments: Whether rows have segment numbers.

        Raises:
            UserError: If a row has no room for a passage.
        """
        self.questions, self.segments = questions, segments
        self.layout = RowLayout(tokenizer)
        room = reading.max_length - self.layout.special
        if room < 2:
            raise UserError(f"max_length={reading.max_length} leaves no room for question and passage; ask for more.")
        asked = _tokenize([question.text for question in questions], tokenizer)
        longest = max(1, min(reading.question, room // 2))
        self._asked = [tokens.ids[:longest] for tokens in asked]
        places: dict[str, int] = {}
        self._passage = [places.setdefault(question.passage, len(places)) for question in questions]
        self._tokens = _tokenize(list(places), tokenizer)
        self.windows: list[Window] = []
        for place in range(len(questions)):
            width = room - len(self._asked[place])
            offset = self.layout.before_passage + len(self._asked[place])
            answer = self._span(place)
            for first, stop in split_into_windows(len(self.tokens(place).ids), width, reading.overlap):
                inside = answer is not None and first <= answer[0] and answer[1] < stop
                where = (answer[0] - first + offset, answer[1] - first + offset) if answer and inside else (0, 0)
                self.windows.append(Window(place, first, stop, offset, where))

    def tokens(self, question: int) -> TokenizedText:
        """Return the tokens of the whole passage of a question."""
        return self._tokens[self._passage[question]]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows)

    def __getitem__(self, place: Any) -> Any:
        """Return the model inputs of a window, not padded, with ``start_positions`` and ``end_positions``."""
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        window = self.windows[place]
        asked = self._asked[window.question]
        ids = self.layout.row(asked, self.tokens(window.question).ids[window.first : window.stop])
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if self.segments:
            row["token_type_ids"] = self.layout.types(len(asked), window.stop - window.first)
        row["start_positions"], row["end_positions"] = window.answer
        return row

    def lengths(self) -> list[int]:
        """Return the tokens of each row."""
        last = self.layout.special - self.layout.before_passage
        return [window.offset + window.stop - window.first + last for window in self.windows]

    def answers(self) -> list[tuple[int, int]]:
        """Return the first and the last token of the first gold answer of each question, where the passage has it."""
        spans = (self._span(place) for place in range(len(self.questions)))
        return [span for span in spans if span is not None]

    def _span(self, question: int) -> tuple[int, int] | None:
        answer = self.questions[question].answers[0]
        return self.tokens(question).span(answer.start, answer.start + len(answer.text))

    def text(self, window: int, first: int, last: int) -> str:
        """Return the text of passage tokens of a window, as it stands in the passage.

        Args:
            window: Its number.
            first: The first token, counted from the first passage token of the window.
            last: The last token, inclusive.
        """
        place = self.windows[window]
        tokens, passage = self.tokens(place.question), self.questions[place.question].passage
        return passage[tokens.starts[place.first + first] : tokens.ends[place.first + last]].strip()

    def subsample_empty_windows(self, without: int, seed: int) -> Windows:
        """Drop windows without an answer, all but ``without`` of each question, drawn from ``seed``; return self.

        A question whose answer lies in no window keeps only such windows, and nothing teaches where it is.
        """
        kept: list[Window] = []
        for windows in self._by_question():
            empty = [place for place, window in enumerate(windows) if window.answer == (0, 0)]
            chosen = random.Random(f"{seed}/{windows[0].question}").sample(empty, min(without, len(empty)))
            dropped = set(empty) - set(chosen)
            kept += [window for place, window in enumerate(windows) if place not in dropped]
        self.windows = kept
        return self

    def _by_question(self) -> Iterator[list[Window]]:
        group: list[Window] = []
        for window in self.windows:
            if group and window.question != group[0].question:
                yield group
                group = []
            group.append(window)
        if group:
            yield group


def split_into_windows(tokens: int, width: int, overlap: int) -> list[tuple[int, int]]:
    """Cut ``tokens`` tokens into windows of ``width``, each sharing ``overlap`` tokens with the one before.

    The overlap is half of the width at most. The last window ends with the text and may be shorter.

    Returns:
        (first, stop) of each window; one window that may be empty at least.
    """
    step = width - min(overlap, width // 2)
    firsts = range(0, max(1, tokens - width + step), step)
    return [(first, min(first + width, tokens)) for first in firsts]


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[TokenizedText]:
    """Tokenise texts without special tokens, however long; one that stands in a text is read as text."""
    made: list[TokenizedText] = []
    for start in range(0, len(texts), TOKENIZER_BATCH_SIZE):
        read = tokenizer(
            texts[start : start + TOKENIZER_BATCH_SIZE],
            add_special_tokens=False,
            split_special_tokens=True,
            truncation=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # that a passage is longer than the model can read is why there are windows
        )
        for ids, offsets in zip(read["input_ids"], read["offset_mapping"], strict=True):
            letters = np.array(offsets, dtype=np.int32).reshape(-1, 2)
            made.append(TokenizedText(np.array(ids, dtype=np.int32), letters[:, 0], letters[:, 1]))
    return made
