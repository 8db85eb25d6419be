"""Questions and passages as rows of tokens: a long passage is read in overlapping windows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex
from transformers import PreTrainedTokenizerBase

from acclimate.base.errors import UserError
from acclimate.tasks.kinds.qa.data import Question

MARKS, LETTERS = regex.compile(r"\p{M}*"), regex.compile(r"[\p{L}\p{N}]*$")
"""Patterns of combining marks, and of letters and digits at the end of a text."""
TOKENIZER_BATCH_SIZE = 256
"""Texts per call of the tokenizer; their tokens are stored as arrays, a fifth of the size of its output."""


@dataclass(frozen=True)
class WindowConfig:
    """How questions and passages are split into rows; all lengths are in tokens.

    The defaults are those of BERT on SQuAD v1.1 (and of TAPTER's Table 4), except for the overlap, which these papers
    do not give: 128 is the default of the scripts of ``transformers``.
    """

    max_length: int = 384
    """Maximum tokens per row, special tokens included."""
    question: int = 64
    """Maximum tokens per question, and at most half of a row; the rest of the question is not read."""
    overlap: int = 128
    """Tokens that neighbouring windows share, at most half of a window.

    An answer of up to this length is complete in at least one window.
    """
    empty: int = 2
    """Maximum training windows without the answer, per question; they are drawn anew for each seed.

    In SQuAD hardly any question has more. A full paper has about 20 of them for each window with the answer, which
    would dominate the training time.
    """


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The tokens of a text: ids, and the characters ``text[starts[i] : ends[i]]`` of each token."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token that overlap the characters ``start`` to ``end``; None if there is none."""
        inside = np.flatnonzero((self.starts < end) & (self.ends > start) & (self.starts < self.ends))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

    def characters(self, first: int, last: int, text: str) -> tuple[int, int]:
        """Return the start and end of the tokens ``first`` to ``last`` in ``text``; equal if they cover nothing.

        Neighboring characters that belong to no token are included: combining marks that follow, because a tokenizer
        may drop accents, and letters that precede, because one that adds a space may cut off the first letter of a
        text. Offsets need not increase: a normalizer may reorder characters.
        """
        covers = self.starts < self.ends
        inside = np.flatnonzero(covers[first : last + 1]) + first
        if not len(inside):
            return 0, 0
        start, end = int(self.starts[inside].min()), int(self.ends[inside].max())
        before, after = self.ends[:first][covers[:first]], self.starts[last + 1 :][covers[last + 1 :]]
        start = LETTERS.search(text, min(start, int(before.max(initial=0))), start).start()
        return start, MARKS.match(text, end, max(end, int(after.min(initial=len(text))))).end()


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens ``first`` to ``stop`` (exclusive) of the passage of a question."""

    question: int
    """Index of the question."""
    first: int
    stop: int
    offset: int
    """Position of the token ``first`` in the row."""
    answer: tuple[int, int] = (0, 0)
    """Positions of the answer's first and last token in the row; (0, 0) if it is not in this window."""


class RowLayout:
    """The special tokens that a tokenizer puts around one or two texts, and the segments of all tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: int, what: str) -> None:
        """Derive the layout from encoded texts.

        Args:
            tokenizer: A fast tokenizer.
            texts: Number of texts per row.
            what: What needs the layout, for messages.

        Raises:
            UserError: If the tokenizer cannot map tokens to characters.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer, which {what}.")
        read = tokenizer(*"ab"[:texts], return_token_type_ids=True)
        parts, ids, types = read.sequence_ids(0), read["input_ids"], read["token_type_ids"]
        places = [range(parts.index(number), len(parts) - parts[::-1].index(number)) for number in range(texts)]
        gaps = [*zip([0, *(place.stop for place in places)], [*(place.start for place in places), None], strict=True)]
        self._ids = [np.array(ids[start:stop], dtype=np.int32) for start, stop in gaps]
        self._types = [types[start:stop] for start, stop in gaps]
        self._of_texts = [types[place.start] for place in places]
        self.special = sum(map(len, self._ids))
        self.before = sum(map(len, self._ids[:-1]))
        """Special tokens before the last text."""

    def row(self, *texts: np.ndarray, segments: bool) -> dict[str, Any]:
        """Return the model inputs of the tokens of each text, with their segments if the model reads these."""
        first, *later = self._ids
        ids = np.concatenate([first, *(part for pair in zip(texts, later, strict=True) for part in pair)])
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if segments:
            row["token_type_ids"] = [*self._types[0]]
            for kind, tokens, between in zip(self._of_texts, texts, self._types[1:], strict=True):
                row["token_type_ids"] += [kind] * len(tokens) + between
        return row


class Windows(Sequence[dict[str, Any]]):
    """The rows of some questions, each built on access; each passage is tokenized only once."""

    def __init__(
        self, questions: Sequence[Question], tokenizer: PreTrainedTokenizerBase, config: WindowConfig, segments: bool
    ) -> None:
        """Split the passages into windows.

        Args:
            questions: The questions.
            tokenizer: A fast tokenizer.
            config: Lengths of rows and windows; ``max_length`` must not exceed what the model can read.
            segments: Whether rows have segment ids.

        Raises:
            UserError: If a row has no space for a passage.
        """
        self.questions, self.segments = questions, segments
        self.layout = RowLayout(tokenizer, 2, "question answering needs")
        room = config.max_length - self.layout.special
        if room < 2:
            raise UserError(f"max_length={config.max_length} leaves no space for question and passage; increase it.")
        longest = max(1, min(config.question, room // 2))
        asked = tokenize_texts([question.text for question in questions], tokenizer)
        # Blanks can be tokens. In a question that is truncated, they must not take the place of words.
        for place, tokens in enumerate(asked):
            if len(tokens.ids) > longest:
                asked[place] = tokenize_texts([" ".join(questions[place].text.split())], tokenizer)[0]
        self._asked = [tokens.ids[:longest] for tokens in asked]
        places: dict[str, int] = {}
        self._passage = [places.setdefault(question.passage, len(places)) for question in questions]
        self._tokens = tokenize_texts(list(places), tokenizer)
        self.windows: list[Window] = []
        for place in range(len(questions)):
            width = room - len(self._asked[place])
            offset = self.layout.before + len(self._asked[place])
            answer = self._span(place)
            for first, stop in split_into_windows(len(self.tokens(place).ids), width, config.overlap):
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
        """Return the model inputs of a window, unpadded, with ``start_positions`` and ``end_positions``."""
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        window = self.windows[place]
        asked = self._asked[window.question]
        passage = self.tokens(window.question).ids[window.first : window.stop]
        row = self.layout.row(asked, passage, segments=self.segments)
        row["start_positions"], row["end_positions"] = window.answer
        return row

    def lengths(self) -> list[int]:
        """Return the number of tokens of each row."""
        last = self.layout.special - self.layout.before
        return [window.offset + window.stop - window.first + last for window in self.windows]

    def answers(self) -> list[tuple[int, int]]:
        """Return the first and last token of each question's first gold answer, where the passage contains it."""
        spans = (self._span(place) for place in range(len(self.questions)))
        return [span for span in spans if span is not None]

    def inexact_answers(self) -> list[tuple[str, str]]:
        """Return the first gold answers that tokens cannot express, each with what its tokens cover."""
        found = []
        for place, question in enumerate(self.questions):
            span, answer = self._span(place), question.answers[0].text
            start, end = self.tokens(place).characters(*span, question.passage) if span else (0, 0)
            if (covered := question.passage[start:end].strip()) != answer:
                found.append((answer, covered))
        return found

    def _span(self, question: int) -> tuple[int, int] | None:
        if not (answers := self.questions[question].answers):
            return None  # a prediction
        return self.tokens(question).span(answers[0].start, answers[0].start + len(answers[0].text))

    def text(self, window: int, first: int, last: int) -> str:
        """Return the text of some passage tokens of a window, as in the passage.

        Args:
            window: Index of the window.
            first: The first token, counted from the first passage token of the window.
            last: The last token, inclusive.
        """
        place = self.windows[window]
        passage = self.questions[place.question].passage
        start, end = self.tokens(place.question).characters(place.first + first, place.first + last, passage)
        return passage[start:end].strip()

    def subsample_empty_windows(self, without: int, seed: int) -> Windows:
        """Keep, for each question, at most ``without`` random windows that lack the answer; return self.

        If no window contains the complete answer, only such windows remain.
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
    """Split ``tokens`` tokens into windows of ``width``, each sharing ``overlap`` tokens with the previous one.

    The overlap is limited to half of the width. The last window ends with the text and can be shorter.

    Returns:
        (first, stop) of each window; at least one, which may be empty.
    """
    step = width - min(overlap, width // 2)
    firsts = range(0, max(1, tokens - width + step), step)
    return [(first, min(first + width, tokens)) for first in firsts]


def tokenize_texts(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[TokenizedText]:
    """Tokenize texts without special tokens and truncation."""
    made: list[TokenizedText] = []
    for start in range(0, len(texts), TOKENIZER_BATCH_SIZE):
        read = tokenizer(
            texts[start : start + TOKENIZER_BATCH_SIZE],
            add_special_tokens=False,
            truncation=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no warning about long passages, which are split into windows
        )
        for ids, offsets in zip(read["input_ids"], read["offset_mapping"], strict=True):
            letters = np.array(offsets, dtype=np.int32).reshape(-1, 2)
            made.append(TokenizedText(np.array(ids, dtype=np.int32), letters[:, 0], letters[:, 1]))
    return made
