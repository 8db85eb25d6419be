"""Entries of a word list, found in texts whatever parts a tokenizer cuts them into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Vocabulary
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


class Phrases:
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
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        assert vocabulary.tokenizer is not None
        special = set(vocabulary.tokenizer.all_special_ids)
        encoded = vocabulary.tokenizer(list(entries), add_special_tokens=False, split_special_tokens=True)
        for ids in encoded["input_ids"]:
            if not ids or not special.isdisjoint(ids):
                continue
            row = np.array([ids])
            words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), vocabulary.pieces)
            spelled = tuple(filter(None, words.spelled(row, vocabulary.pieces, fold=fold)))
            if spelled and spelled not in (known := self._by_first.setdefault(spelled[0], [])):
                known.append(spelled)
        if not self._by_first:
            raise UserError("masking: no entry of the list can be written with the vocabulary of this tokenizer.")
        for known in self._by_first.values():
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
        stretch = np.cumsum(~words.adjoins()).tolist()  # an entry does not reach over special tokens or into a text
        found, going_on = np.zeros((2, len(words)), dtype=bool)
        free = 0
        for at, word in enumerate(spelled):
            if at < free or word not in self._by_first:
                continue
            for entry in self._by_first[word]:
                stop = at + len(entry)
                if tuple(spelled[at:stop]) == entry and stretch[stop - 1] == stretch[at]:
                    found[at:stop] = True
                    going_on[at + 1 : stop] = True
                    free = stop
                    break
        return found, going_on


def listed(
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
        vocabulary.kept[key] = Phrases(read_entries(path), vocabulary, fold=fold)
    found, going_on = vocabulary.kept[key].find(words, ids, vocabulary)
    return words.joined(going_on), found[~going_on]
