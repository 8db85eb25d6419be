"""Masking of the entries of a word list: terms of a lexicon, or named entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from acclimate.corpus.tokenizing import encode
from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary, register
from acclimate.masking.whole_word import sample_words
from acclimate.masking.words import Words


def read_entries(path: str | Path) -> list[str]:
    """Return the entries of a text file with one word or phrase per line, without blank lines.

    Raises:
        UserError: If the file has no entry or is not UTF-8.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"masking: '{path}' is not UTF-8; give a text file with one entry per line.") from error
    if not (entries := [line.strip() for line in lines if line.strip()]):
        raise UserError(f"masking: '{path}' is empty; give a text file with one entry per line.")
    return entries


class LexiconMatcher:
    """Finds entries in texts as sequences of words; of several that start at the same word, it takes the longest."""

    def __init__(self, entries: Sequence[str], vocabulary: Vocabulary, *, ignore_case: bool) -> None:
        """Split the entries into words, with the tokenizer.

        Args:
            entries: Words or phrases. An entry with an unknown token is left out.
            vocabulary: A vocabulary with its tokenizer.
            ignore_case: Whether to ignore case.

        Raises:
            UserError: If no entry is left.
        """
        self.ignore_case = ignore_case
        self._by_first_word: dict[str, list[tuple[str, ...]]] = {}
        assert vocabulary.tokenizer is not None
        special = set(vocabulary.tokenizer.all_special_ids)
        for ids in encode(vocabulary.tokenizer, entries):
            if not ids or not special.isdisjoint(ids):
                continue
            row = np.array([ids])
            words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), vocabulary.subwords)
            forms = words.surface_forms(row, vocabulary.subwords, lowercase=ignore_case)
            entry = tuple(filter(None, forms))
            if entry and entry not in (known := self._by_first_word.setdefault(entry[0], [])):
                known.append(entry)
        if not self._by_first_word:
            raise UserError("masking: every entry of the list has a token that the tokenizer does not know.")
        for known in self._by_first_word.values():
            known.sort(key=len, reverse=True)

    def find(self, words: Words, ids: np.ndarray, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Find the entries in texts, from left to right, without overlap.

        Args:
            words: The words of the texts.
            ids: Original token ids (rows, tokens).
            vocabulary: The vocabulary.

        Returns:
            Which words belong to an entry, and which of them continue the entry of the previous word; (words,) each.
        """
        forms = words.surface_forms(ids, vocabulary.subwords, lowercase=self.ignore_case)
        # An entry cannot span special tokens or two texts.
        segment = np.cumsum(~words.follows_previous()).tolist()
        found, continues = np.zeros((2, len(words)), dtype=bool)
        end = 0
        for start, word in enumerate(forms):
            if start < end or word not in self._by_first_word:
                continue
            for entry in self._by_first_word[word]:
                stop = start + len(entry)
                if tuple(forms[start:stop]) == entry and segment[stop - 1] == segment[start]:
                    found[start:stop] = True
                    continues[start + 1 : stop] = True
                    end = stop
                    break
        return found, continues


def join_entries(
    path: str, words: Words, ids: np.ndarray, vocabulary: Vocabulary, *, ignore_case: bool
) -> tuple[Words, np.ndarray]:
    """Merge the words of each entry of a list into one unit.

    Args:
        path: The list, which is read once per vocabulary.
        words: The words of the texts.
        ids: Original token ids (rows, tokens).
        vocabulary: The vocabulary.
        ignore_case: Whether to ignore case.

    Returns:
        The units, and which of them are entries (units,).
    """
    key = ("lexicon", path, ignore_case)
    if key not in vocabulary.cache:
        vocabulary.cache[key] = LexiconMatcher(read_entries(path), vocabulary, ignore_case=ignore_case)
    found, continues = vocabulary.cache[key].find(words, ids, vocabulary)
    return words.merge(continues), found[~continues]


@register(
    "lexicon-first",
    paper="Zhai et al., Findings of ACL 2024 (Chinese MentalBERT)",
    summary="words of a lexicon before random words, until the rate is reached",
)
@dataclass(frozen=True)
class LexiconFirst(Strategy):
    """Masks terms of a lexicon first, and random whole words until the rate is reached (Zhai et al., 2024).

    The tokens of a term of several words are chosen and replaced together. The paper masks 20 % of the tokens; set
    ``mask_rate`` to 0.2 for that.

    Attributes:
        lexicon: Text file with one term per line.
        order: Which terms to mask if a text has more than the rate allows: ``random`` ones, or the first in the
            ``text``, as in the released code. With ``text``, the end of a text with many terms is never masked.
        share: Probability that an occurrence of a term takes precedence over other words. With 1, as in the paper, no
            other word of a text with many terms is ever masked.
        case: Whether to respect case; it makes no difference to an uncased tokenizer.
    """

    files: ClassVar[tuple[str, ...]] = ("lexicon",)

    lexicon: str = ""
    order: Literal["random", "text"] = "random"
    share: float = 1.0
    case: bool = False

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If a share is out of range or the file is missing.
        """
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise UserError(f"lexicon-first: 'share' must be a probability between 0 and 1, not {self.share:g}.")

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose terms and words."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        units, first = join_entries(self.lexicon, words, ids, vocabulary, ignore_case=not self.case)
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
    """Masks whole entities of a list, as in the entity-level stage of ERNIE (Sun et al., 2019).

    The papers find entities with a tagger; here they are the entries of a list. If a text has more entities than the
    rate allows, random ones are chosen.

    Attributes:
        entities: Text file with one entity per line, of one or several words.
        fill: Whether to mask random whole words, too, until the rate is reached. Without it only entities are masked,
            like the salient spans of REALM (Guu et al., 2020), and a text without entities stays unmasked.
        case: Whether to respect case, as is usual for names; it makes no difference to an uncased tokenizer.
    """

    files: ClassVar[tuple[str, ...]] = ("entities",)

    entities: str = ""
    fill: bool = True
    case: bool = True

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose entities and words."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        units, first = join_entries(self.entities, words, ids, vocabulary, ignore_case=not self.case)
        taken = sample_words(units, self.rate, rng, first)
        return units.leaders(taken if self.fill else taken & first, ids.shape)
