"""Which tokens make a word, for tokenizers that mark words in different ways.

A token begins a word if

- its tokenizer says so: WordPiece by the absence of ``##``, byte-level BPE and SentencePiece by the space before it;
- or it is the first of a text, or stands after a special token: a row that a cut of a document begins in mid-word has
  the rest of that word as its first word;
- or it begins with punctuation, or follows a token that ends with punctuation: a sign of punctuation is a word of its
  own, as BERT's tokenizer has it, although RoBERTa's writes ``good.`` without a mark before the dot;
- or it begins with a character of a script without spaces (Han, Kana, Thai, Lao, Khmer, Burmese), or follows one:
  there a token is the only word that a tokenizer knows.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""How the Unicode names of characters begin whose scripts put no spaces between words."""
SPACE_TOKENS = ("Ġ", "▁")
"""Tokens that are one space: the first character after it could not be joined to it, but belongs to it."""


def is_punctuation(character: str) -> bool:
    """Say what BERT's tokenizer says: ASCII that is neither letter nor digit nor space, or Unicode punctuation."""
    if character.isascii():
        return not character.isalnum() and not character.isspace()
    return unicodedata.category(character).startswith("P")


def _is_single_character_word(character: str) -> bool:
    return is_punctuation(character) or unicodedata.name(character, "").startswith(UNSPACED_SCRIPTS)


@dataclass(frozen=True)
class SubwordTable:
    """What the ids of a vocabulary spell.

    Attributes:
        text: Characters of each id, without marks; a name of its own where the bytes of an id are no characters.
        parts: The bytes of the ids that are parts of characters.
        starts_word: Whether the id begins a word wherever it stands (ids).
        ends_word: Whether what follows the id begins a word in any case (ids).
        spaced: Whether the id is marked as the beginning of a word, mostly by a space (ids).
    """

    text: Sequence[str]
    parts: Mapping[int, bytes]
    starts_word: np.ndarray
    ends_word: np.ndarray
    spaced: np.ndarray

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> SubwordTable:
        """Read a tokenizer.

        Raises:
            UserError: If it marks words in a way that is not known here.
        """
        from acclimate.corpus.surface_forms import (
            read_surface_forms,  # reads the whole vocabulary: only for what needs words
        )

        found = read_surface_forms(tokenizer)
        text = [piece.text for piece in found]
        starts_word = np.array([piece.starts or _is_single_character_word(piece.text[:1] or "a") for piece in found])
        ends_word = np.array([_is_single_character_word(piece.text[-1:] or "a") for piece in found])
        names = tokenizer.get_vocab()
        parts = {index: piece.part for index, piece in enumerate(found) if piece.part}
        for token, index in names.items():
            if not text[index] and found[index].starts and index not in parts:
                ends_word[index] = token not in SPACE_TOKENS  # line breaks and runs of spaces end what came before
            elif not text[index]:
                text[index] = f"\0{index}"  # part of a character: unlike every other
        return cls(text, parts, starts_word, ends_word, np.array([piece.starts for piece in found]))

    @cached_property
    def folded(self) -> Sequence[str]:
        """The characters of each id in lower case."""
        return [text.lower() for text in self.text]

    @cached_property
    def partial(self) -> np.ndarray:
        """Whether each id is a part of characters (ids)."""
        return np.isin(np.arange(len(self.text)), list(self.parts))

    def together(self, tokens: Sequence[int]) -> str:
        """Return the characters of several ids, of which some are parts; their names if they make no characters."""
        try:
            return b"".join(self.parts.get(token) or self.text[token].encode() for token in tokens).decode()
        except UnicodeDecodeError:
            return "".join(self.text[token] for token in tokens)


@dataclass(frozen=True)
class Words:
    """The words (or longer units) of a batch.

    Attributes:
        place: Places, counted through all rows, of the tokens that may be chosen (tokens).
        first: Where in ``place`` each word begins, and the end (words + 1).
        text: Number of the text of each word (words).
    """

    place: np.ndarray
    first: np.ndarray
    text: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, pieces: SubwordTable) -> Words:
        """Find the words; for the arguments see :class:`acclimate.masking.Masking`."""
        place = np.flatnonzero(allowed)
        token, number = ids.ravel()[place], text.ravel()[place]
        begins = np.ones(len(place), dtype=bool)
        begins[1:] = (
            (np.diff(place) > 1)
            | (np.diff(number) != 0)
            | pieces.starts_word[token[1:]]
            | pieces.ends_word[token[:-1]]
        )
        first = np.flatnonzero(begins)
        return cls(place, np.append(first, len(place)), number[first])

    def __len__(self) -> int:
        return len(self.text)

    @property
    def length(self) -> np.ndarray:
        """How many tokens each word has (words)."""
        return np.diff(self.first)

    def follows_previous(self) -> np.ndarray:
        """Return which words follow the word before at once, in the same text (words)."""
        start = self.place[self.first[:-1]]
        result = np.zeros(len(self), dtype=bool)
        result[1:] = (start[1:] == self.place[self.first[1:-1] - 1] + 1) & (np.diff(self.text) == 0)
        return result

    def joined(self, to_previous: np.ndarray) -> Words:
        """Return units of several words each: True joins a word to the one before it (words)."""
        kept = ~to_previous
        return Words(self.place, np.append(self.first[:-1][kept], self.first[-1]), self.text[kept])

    def spelled(self, ids: np.ndarray, pieces: SubwordTable, *, fold: bool) -> list[str]:
        """Return the characters of each word, in lower case if ``fold``."""
        spelling = pieces.folded if fold else pieces.text
        tokens = ids.ravel()[self.place]
        parts = [spelling[token] for token in tokens.tolist()]
        cuts = self.first.tolist()
        words = [parts[start] if stop - start == 1 else "".join(parts[start:stop]) for start, stop in pairwise(cuts)]
        # The same character may be one token behind a space and several elsewhere.
        places = np.flatnonzero(pieces.partial[tokens])
        for number in np.unique(np.searchsorted(self.first, places, side="right") - 1).tolist():
            word = pieces.together(tokens[cuts[number] : cuts[number + 1]].tolist())
            words[number] = word.lower() if fold else word
        return words

    def leaders(self, taken: np.ndarray, shape: tuple[int, ...], *, together: bool = True) -> np.ndarray:
        """Return what :meth:`acclimate.masking.Strategy.choose` wants.

        Args:
            taken: Which words are chosen (words).
            shape: Rows and tokens of the batch.
            together: Whether the tokens of a word share their fate.
        """
        leader = np.full(shape, -1)
        chosen = np.repeat(taken, self.length)
        first = np.repeat(self.place[self.first[:-1]], self.length) if together else self.place
        leader.ravel()[self.place[chosen]] = first[chosen]
        return leader
