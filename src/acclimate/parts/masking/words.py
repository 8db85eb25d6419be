"""Words of a text for tokenizers that mark them in different ways.

A token begins a word if

- the tokenizer marks it: WordPiece by the absence of ``##``, byte-level BPE and SentencePiece by the space before it;
- it is the first token of a text, or follows a special token; so a row that begins within a word has the rest of
  that word as its first word;
- it begins with punctuation, or follows a token that ends with punctuation; so each punctuation character is a word,
  as in BERT, although RoBERTa does not mark the dot in ``good.``;
- it begins with a character of a script without spaces (Han, Kana, Thai, Lao, Khmer, Burmese), or follows one; in
  these scripts tokens are the only words that a tokenizer knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import regex
from transformers import PreTrainedTokenizerBase

from acclimate.data.surface_forms import read_surface_forms

_PUNCTUATION = r"\p{P}!-/:-@\[-`{-~"
_PUNCTUATION_PATTERN = regex.compile(f"[{_PUNCTUATION}]")
# The long vowel mark of Kana has no script of its own.
_SINGLE_CHARACTER_WORD_PATTERN = regex.compile(
    rf"[{_PUNCTUATION}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}ー\p{{Thai}}\p{{Lao}}\p{{Khmer}}\p{{Myanmar}}]"
)
SPACE_TOKENS = ("Ġ", "▁")
"""Tokens for a single space that the tokenizer could not join to the character after it; they begin its word."""


def is_punctuation(character: str) -> bool:
    """Return whether the tokenizer of BERT treats a character as punctuation: ASCII symbols and Unicode category P."""
    return _PUNCTUATION_PATTERN.match(character) is not None


def _is_single_character_word(character: str) -> bool:
    return _SINGLE_CHARACTER_WORD_PATTERN.match(character) is not None


@dataclass(frozen=True)
class SubwordTable:
    """The surface forms and word boundaries of a vocabulary.

    Attributes:
        text: Characters of each id, without markers. An id whose bytes are not valid UTF-8 has a unique placeholder.
        parts: The bytes of the ids that are parts of characters.
        starts_word: Whether the id always begins a word (ids,).
        ends_word: Whether the token after the id always begins a word (ids,).
        spaced: Whether the id is marked as the beginning of a word, usually by a space (ids,).
    """

    text: Sequence[str]
    parts: Mapping[int, bytes]
    starts_word: np.ndarray
    ends_word: np.ndarray
    spaced: np.ndarray

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> SubwordTable:
        """Read the vocabulary of a tokenizer.

        Raises:
            UserError: If the tokenizer is not fast, or marks words in an unsupported way.
        """
        forms = read_surface_forms(tokenizer)
        text = [form.text for form in forms]
        starts_word = np.array([form.starts or _is_single_character_word(form.text[:1]) for form in forms])
        ends_word = np.array([_is_single_character_word(form.text[-1:]) for form in forms])
        parts = {index: form.part for index, form in enumerate(forms) if form.part}
        for token, index in tokenizer.get_vocab().items():
            if not text[index] and forms[index].starts and index not in parts:
                ends_word[index] = token not in SPACE_TOKENS  # line breaks and runs of spaces are words
            elif not text[index]:
                text[index] = f"\0{index}"
        return cls(text, parts, starts_word, ends_word, np.array([form.starts for form in forms]))

    @cached_property
    def lowercase(self) -> Sequence[str]:
        """The characters of each id in lower case."""
        return [text.lower() for text in self.text]

    @cached_property
    def is_part(self) -> np.ndarray:
        """Whether each id is a part of characters (ids,)."""
        return np.isin(np.arange(len(self.text)), list(self.parts))

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of several ids, some of which are parts of characters.

        If their bytes are not valid UTF-8, the placeholders of the ids are joined instead.
        """
        try:
            return b"".join(self.parts.get(token) or self.text[token].encode() for token in tokens).decode()
        except UnicodeDecodeError:
            return "".join(self.text[token] for token in tokens)


@dataclass(frozen=True)
class Words:
    """The words of a batch, or longer units.

    Attributes:
        positions: Flat positions, in the batch, of the tokens that may be chosen (tokens,).
        starts: Index into ``positions`` of the first token of each word, and the end (words + 1,).
        text: Number of the text of each word (words,).
    """

    positions: np.ndarray
    starts: np.ndarray
    text: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, subwords: SubwordTable) -> Words:
        """Find the words; for the arguments see :class:`acclimate.parts.masking.Masking`."""
        positions = np.flatnonzero(allowed)
        token, number = ids.ravel()[positions], text.ravel()[positions]
        begins = np.ones(len(positions), dtype=bool)
        begins[1:] = (
            (np.diff(positions) > 1)
            | (np.diff(number) != 0)
            | subwords.starts_word[token[1:]]
            | subwords.ends_word[token[:-1]]
        )
        first = np.flatnonzero(begins)
        return cls(positions, np.append(first, len(positions)), number[first])

    def __len__(self) -> int:
        return len(self.text)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each word (words,)."""
        return np.diff(self.starts)

    def follows_previous(self) -> np.ndarray:
        """Return which words directly follow the previous word, in the same text (words,)."""
        start = self.positions[self.starts[:-1]]
        result = np.zeros(len(self), dtype=bool)
        result[1:] = (start[1:] == self.positions[self.starts[1:-1] - 1] + 1) & (np.diff(self.text) == 0)
        return result

    def merge(self, to_previous: np.ndarray) -> Words:
        """Return units of one or several words.

        Args:
            to_previous: Whether to merge each word with the one before it (words,).
        """
        kept = ~to_previous
        return Words(self.positions, np.append(self.starts[:-1][kept], self.starts[-1]), self.text[kept])

    def surface_forms(self, ids: np.ndarray, subwords: SubwordTable, *, lowercase: bool) -> list[str]:
        """Return the characters of each word."""
        text_of = subwords.lowercase if lowercase else subwords.text
        tokens = ids.ravel()[self.positions]
        texts = [text_of[token] for token in tokens.tolist()]
        starts = self.starts.tolist()
        words = [texts[start] if stop - start == 1 else "".join(texts[start:stop]) for start, stop in pairwise(starts)]
        # Byte-level tokenizers may split the same character differently after a space and elsewhere.
        split = np.flatnonzero(subwords.is_part[tokens])
        for number in np.unique(np.searchsorted(self.starts, split, side="right") - 1).tolist():
            word = subwords.join(tokens[starts[number] : starts[number + 1]].tolist())
            words[number] = word.lower() if lowercase else word
        return words

    def leaders(self, chosen: np.ndarray, shape: tuple[int, ...], *, together: bool = True) -> np.ndarray:
        """Return the result of :meth:`acclimate.parts.masking.Strategy.choose` for some chosen words.

        Args:
            chosen: Whether each word is chosen (words,).
            shape: Shape of the batch: rows and tokens.
            together: Whether all tokens of a word are replaced in the same way.
        """
        leader = np.full(shape, -1)
        tokens = np.repeat(chosen, self.lengths)
        first = np.repeat(self.positions[self.starts[:-1]], self.lengths) if together else self.positions
        leader.ravel()[self.positions[tokens]] = first[tokens]
        return leader
