"""Entries of a word list, found in texts whatever parts a tokenizer cuts them into.

Words of a lexicon before other words.

Named entities before other words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary, register
from acclimate.masking.random import sample_words
from acclimate.masking.words import Words


def read_entries(path: str | Path) -> list[str]:
    """Return the words and phrases of a text file, one a line; empty lines and white space around them are left out.

    Raises:
        UserError: If the file holds none, or is no text.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"masking: '{path}' is no text in UTF-8; give a text file with an entry a line.") from error
    if not (entries := [line.strip() for line in lines if line.strip()]):
        raise UserError(f"masking: '{path}' is empty; give a text file with an entry a line.")
    return entries


class LexiconMatcher:
    """Entries as sequences of words; of several that begin at the same word the longest counts."""

    def __init__(self, entries: Sequence[str], vocabulary: Vocabulary, *, fold: bool) -> None:
        """Cut entries into words as the tokenizer cuts texts, and with its capitals and accents.

        Args:
            entries: Words or phrases; one with a word that the vocabulary cannot write is left out.
            vocabulary: With its tokenizer.
            fold: Whether capitals do not matter.

        Raises:
            UserError: If none is left.
        """
        self.fold = fold
        self._by_first_word: dict[str, list[tuple[str, ...]]] = {}
        assert vocabulary.tokenizer is not None
        special = set(vocabulary.tokenizer.all_special_ids)
        encoded = vocabulary.tokenizer(list(entries), add_special_tokens=False, split_special_tokens=True)
        for ids in encoded["input_ids"]:
            if not ids or not special.isdisjoint(ids):
                continue
            row = np.array([ids])
            words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), vocabulary.pieces)
            spelled = tuple(filter(None, words.spelled(row, vocabulary.pieces, fold=fold)))
            if spelled and spelled not in (known := self._by_first_word.setdefault(spelled[0], [])):
                known.append(spelled)
        if not self._by_first_word:
            raise UserError("masking: no entry of the list can be written with the vocabulary of this tokenizer.")
        for known in self._by_first_word.values():
            known.sort(key=len, reverse=True)

    def find(self, words: Words, ids: np.ndarray, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Find the entries in texts, from left to right, without overlap.

        Args:
            words: The words of the texts.
            ids: Original token ids (rows, tokens).
            vocabulary: What the ids spell.

        Returns:
            Which words are in an entry, and which of them go on with the entry of the word before (words).
        """
        spelled = words.spelled(ids, vocabulary.pieces, fold=self.fold)
        stretch = np.cumsum(
            ~words.follows_previous()
        ).tolist()  # an entry does not reach over special tokens or into a text
        found, going_on = np.zeros((2, len(words)), dtype=bool)
        free = 0
        for at, word in enumerate(spelled):
            if at < free or word not in self._by_first_word:
                continue
            for entry in self._by_first_word[word]:
                stop = at + len(entry)
                if tuple(spelled[at:stop]) == entry and stretch[stop - 1] == stretch[at]:
                    found[at:stop] = True
                    going_on[at + 1 : stop] = True
                    free = stop
                    break
        return found, going_on


def join_entries(
    path: str, words: Words, ids: np.ndarray, vocabulary: Vocabulary, *, fold: bool
) -> tuple[Words, np.ndarray]:
    """Join the words of each entry of a list to one unit.

    Args:
        path: The list; it is read once for a vocabulary.
        words: The words of the texts.
        ids: Original token ids (rows, tokens).
        vocabulary: What the ids spell.
        fold: Whether capitals do not matter.

    Returns:
        The units, and which of them are entries (units).
    """
    key = ("phrases", path, fold)
    if key not in vocabulary.kept:
        vocabulary.kept[key] = LexiconMatcher(read_entries(path), vocabulary, fold=fold)
    found, going_on = vocabulary.kept[key].find(words, ids, vocabulary)
    return words.joined(going_on), found[~going_on]


@register(
    "lexicon-first",
    paper="Zhai et al., Findings of ACL 2024 (Chinese MentalBERT)",
    summary="words of a lexicon before random words, until the rate is reached",
)
@dataclass(frozen=True)
class LexiconFirst(Strategy):
    """Whole words of a lexicon first; random whole words fill what is left of the rate (Zhai et al., 2024).

    An entry of several words is one unit: its tokens are chosen together and share their fate. The paper masks a
    fifth of the tokens: give ``mask_rate`` 0.2 for that.

    Attributes:
        lexicon: Text file with an entry a line.
        order: Which entries come first where a text has more of them than the rate allows: ``random`` ones, or those
            first in the ``text``, as in the released code. By chance is the default: else what stands late in a
            text full of entries is never masked.
        share: Probability that an occurrence of an entry comes before other words. With 1, as in the paper, a text
            full of entries never has another word masked.
        case: Whether capitals matter; an uncased tokenizer knows none.
    """

    files: ClassVar[tuple[str, ...]] = ("lexicon",)

    lexicon: str = ""
    order: Literal["random", "text"] = "random"
    share: float = 1.0
    case: bool = False

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            UserError: If one is out of range, or the file is missing.
        """
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise UserError(f"lexicon-first: 'share' is a probability, from 0 to 1, not {self.share:g}.")

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose entries and words."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        units, first = join_entries(self.lexicon, words, ids, vocabulary, fold=not self.case)
        first &= rng.random(len(units)) < self.share
        rank = rng.random(len(units))
        if self.order == "text":
            rank[first] = np.arange(len(units))[first]
        return units.leaders(sample_words(units, self.rate, rng, first, rank), ids.shape)


@register(
    "entity-first",
    paper="Sun et al., 2019 (ERNIE); Guu et al., ICML 2020 (REALM)",
    summary="entities of a list, whole, before random words or instead of them",
)
@dataclass(frozen=True)
class EntityFirst(Strategy):
    """Entities of a list as wholes, as the entity-level stage of ERNIE masks them (Sun et al., 2019).

    The papers find entities with a tagger; here they are the entries of a list. Where a text has more entities than
    the rate allows, random ones of them are chosen.

    Attributes:
        entities: Text file with an entity a line, of one or several words.
        fill: Whether random whole words fill what is left of the rate. Without them only entities are masked, the
            salient spans of REALM (Guu et al., 2020), and a text without entities has no masked token.
        case: Whether capitals matter, as they mostly do in names; an uncased tokenizer knows none.
    """

    files: ClassVar[tuple[str, ...]] = ("entities",)

    entities: str = ""
    fill: bool = True
    case: bool = True

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose entities and words."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        units, first = join_entries(self.entities, words, ids, vocabulary, fold=not self.case)
        taken = sample_words(units, self.rate, rng, first)
        return units.leaders(taken if self.fill else taken & first, ids.shape)
