"""Masking of the entries of a word list: terms of a lexicon, or named entities."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import read_lines
from acclimate.base.registry import Published, parse_number
from acclimate.data.tokenizing import encode
from acclimate.parts.masking.base import Strategy, Vocabulary, register
from acclimate.parts.masking.whole_word import sample_words
from acclimate.parts.masking.words import Words


def read_entries(path: str | Path) -> dict[str, float]:
    """Return the entries of a text file with one word or phrase per line, without blank lines, and their weights.

    A number after a tab at the end of a line is the weight of its entry; others have the weight 1.

    Raises:
        UserError: If the file has no entry or is not UTF-8, or a weight is not positive.
    """
    try:
        lines = read_lines(path, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"masking: '{path}' is not UTF-8; give a text file with one entry per line.") from error
    entries: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        entry, _, given = line.rstrip().rpartition("\t")
        weight = parse_number(given) if entry.strip() else None
        if not isinstance(weight, int | float) or isinstance(weight, bool):
            entry, weight = line, 1.0
        if not 0 < weight < np.inf:
            raise UserError(f"masking: line {number} of '{path}' has the weight {given}; give a number above 0.")
        if entry.strip():
            entries.setdefault(entry.strip(), float(weight))
    if not entries:
        raise UserError(f"masking: '{path}' is empty; give a text file with one entry per line.")
    return entries


class LexiconMatcher:
    """Finds entries in texts as sequences of words; of several that start at the same word, it takes the longest."""

    def __init__(self, entries: Iterable[str], vocabulary: Vocabulary, *, ignore_case: bool) -> None:
        """Split the entries into words, with the tokenizer.

        Args:
            entries: Words or phrases, or a mapping of them to weights. An entry with an unknown token is left out.
            vocabulary: A vocabulary with its tokenizer.
            ignore_case: Whether to ignore case.

        Raises:
            UserError: If no entry is left.
        """
        self.ignore_case = ignore_case
        self._by_first_word: dict[str, list[tuple[str, ...]]] = {}
        self._weights: dict[tuple[str, ...], float] = {}
        weights = entries.values() if isinstance(entries, Mapping) else itertools.repeat(1.0)
        assert vocabulary.tokenizer is not None
        special = set(vocabulary.tokenizer.all_special_ids)
        for ids, weight in zip(encode(vocabulary.tokenizer, [*entries]), weights, strict=False):
            if not ids or not special.isdisjoint(ids):
                continue
            row = np.array([ids])
            words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), vocabulary.subwords)
            forms = words.surface_forms(row, vocabulary.subwords, lowercase=ignore_case)
            entry = tuple(filter(None, forms))
            if entry and entry not in (known := self._by_first_word.setdefault(entry[0], [])):
                known.append(entry)
                self._weights[entry] = weight
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
            The weight of the entry of each word, 0 for words of none, and which words continue the entry of the
            previous word; (words,) each.
        """
        forms = words.surface_forms(ids, vocabulary.subwords, lowercase=self.ignore_case)
        # An entry cannot span special tokens or two texts.
        segment = np.cumsum(~words.follows_previous()).tolist()
        found, continues = np.zeros(len(words)), np.zeros(len(words), dtype=bool)
        end = 0
        for start, word in enumerate(forms):
            if start < end or word not in self._by_first_word:
                continue
            for entry in self._by_first_word[word]:
                stop = start + len(entry)
                if tuple(forms[start:stop]) == entry and segment[stop - 1] == segment[start]:
                    found[start:stop] = self._weights[entry]
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
        The units, and the weight of each, 0 for units that are no entry (units,).
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
        lexicon: Text file with one term per line. A number after a tab is the weight of the term, 1 by default.
        order: Which terms to mask if a text has more than the rate allows: ``random`` ones, each next one with a
            probability proportional to its weight (Efraimidis and Spirakis, 2006), or the first in the ``text``, as
            in the released code. With ``text``, the end of a text with many terms is never masked.
        share: Probability that an occurrence of a term takes precedence over other words. With 1, as in the paper, no
            other word of a text with many terms is ever masked.
        case: Whether to respect case; it makes no difference to an uncased tokenizer.
    """

    files: ClassVar[tuple[str, ...]] = ("lexicon",)

    lexicon: str = ""
    order: Annotated[
        Literal["random", "text"],
        Published({"released-code": "text"}, "The end of a text with many terms is masked as well."),
    ] = "random"
    share: float = 1.0
    case: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise UserError(f"lexicon-first: 'share' must be a probability between 0 and 1, not {self.share:g}.")
        if self.order == "text" and {*read_entries(self.lexicon).values()} != {1.0}:
            raise UserError(
                f"lexicon-first: the weights in '{self.lexicon}' have no effect with order=text; remove it."
            )

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose terms and words."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        units, weight = join_entries(self.lexicon, words, ids, vocabulary, ignore_case=not self.case)
        first = (weight > 0) & (rng.random(len(units)) < self.share)
        rank = rng.random(len(units))
        rank[first] = np.arange(len(units))[first] if self.order == "text" else -np.log1p(-rank[first]) / weight[first]
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
        units, weight = join_entries(self.entities, words, ids, vocabulary, ignore_case=not self.case)
        first = weight > 0
        taken = sample_words(units, self.rate, rng, first)
        return units.leaders(taken if self.fill else taken & first, ids.shape)
