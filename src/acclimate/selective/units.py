"""The rows of a task become units: token ids that are annotated as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.corpus.tokenizing import encode
from acclimate.errors import UserError
from acclimate.selective.annotation import Unit
from acclimate.selective.options import AnnotationOptions
from acclimate.selective.scoring import Frame
from acclimate.tasks.data import Example
from acclimate.vectors.stop_words import read_stop_words
from acclimate.vectors.surface import surfaces

# Where there are spaces one stands behind a sentence; Chinese and Japanese have none, and marks of their own.
_END = re.compile(r"""(?:[.!?…]+["'”’)\]]*\s+|[。！？｡][.!?…。！？｡]*["'”’)\]」』）】》]*\s*)+|\n\s*""")
_SHORTENED = re.compile(r"""(?:^|[\s("'“‘\[])(?:mrs?|ms|dr|prof|sr|jr|st|vs|e\.g|i\.e)\.\s+$""", re.IGNORECASE)


@dataclass(frozen=True)
class Units:
    """What is annotated of a task.

    Attributes:
        units: In the order of the rows; those without a token are left out.
        cut: How many were longer than the model reads. What is cut off is not annotated; the released code goes on
            to the end and gives every token there the score of the last one that was read.
        empty: How many had no token.
    """

    units: list[Unit]
    cut: int
    empty: int


def split_sentences(text: str) -> list[str]:
    """Split a text behind full stops, question and exclamation marks and at ends of lines, by rule."""
    parts, start = [], 0
    for found in _END.finditer(text):
        if _SHORTENED.search(text[start : found.end()]):
            continue
        parts.append(text[start : found.end()])
        start = found.end()
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def make_units(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int, options: AnnotationOptions
) -> Units:
    """Tokenise what is to be annotated.

    Args:
        examples: Rows of the task. Of a pair the first text is annotated; the second stays whole beside every buffer,
            as the aspect does in the paper. A pair is never cut into sentences, whatever ``unit`` says (nor does the
            released code): the second text, and with it the label, may belong to one of them only.
        tokenizer: Of the classifier.
        max_length: Tokens that it reads, special ones included; of a pair the longer text is cut first.
        options: Of them, ``unit``.

    Raises:
        UserError: If no row has a token.
    """
    pair = bool(examples) and examples[0].text_pair is not None
    room = max_length - Frame.of(tokenizer, pair).specials
    cutting = options.unit == "sentence" and not pair
    rows = [
        (number, part, example)
        for number, example in enumerate(examples)
        for part in (split_sentences(example.text) if cutting else [example.text])
    ]
    firsts = encode(tokenizer, [part for _, part, _ in rows]) if rows else []
    seconds = encode(tokenizer, [example.text_pair or "" for _, _, example in rows]) if pair else [[]] * len(rows)
    units, cut = [], 0
    for (number, _, example), first, second in zip(rows, firsts, seconds, strict=True):
        kept, beside = _fit(first, second, room)
        cut += (kept, beside) != (len(first), len(second))
        assert isinstance(example.label, int), "important tokens belong to one label"
        if kept:
            units.append(Unit(tuple(first[:kept]), example.label, tuple(second[:beside]) if pair else None, number))
    if not units:
        raise UserError("No row of the task has a token that could be important.")
    return Units(units, cut, len(rows) - len(units))


def _fit(first: Sequence[int], second: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept: the longer one is cut first."""
    one, two = len(first), len(second)
    if one + two <= room:
        return one, two
    shorter = min(one, two, room // 2)
    return (room - shorter, shorter) if one >= two else (shorter, room - shorter)


def stop_word_ids(tokenizer: PreTrainedTokenizerBase, source: str) -> np.ndarray | None:
    """Return for each id whether it is a stop word, as first token of a unit and behind it; None for no stop words.

    A token is one if it begins a word and spells a stop word in whatever case, as in the released code; what follows
    it does not count. The first token begins a word, although byte-level BPE marks only what stands behind a space.

    Returns:
        (2, vocabulary).
    """
    words = read_stop_words(source, tokenizer)
    if not words:
        return None
    pieces = surfaces(tokenizer)
    named = np.array([piece.text.lower() in words for piece in pieces])
    return np.stack([named, named & np.array([piece.starts for piece in pieces])])
