"""Texts that are looked for in documents, and an index that finds them: see :mod:`acclimate.corpus.leakage`."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.combining import MARKS
from acclimate.errors import UserError

WORDS, LETTERS = 5, 5
"""Lengths of the sequences that are compared, in words for *contained* and in letters for *near*."""
PERMUTATIONS, BANDS, ROWS = 128, 25, 5
"""Of MinHash, and how the hash tables cut them: a pair of similarity s is proposed with 1 - (1 - s**5)**25."""
LONG = 1 << 20
"""Letters after which a document is read in pieces, so that its words need not be in memory together."""
LONGEST_WORD = 1000

_ONE = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_ONE}]|[^\W_{_ONE}]+(?:[{MARKS}]+[^\W_{_ONE}]*)*")
_BREAK = re.compile(rf"[^\w{MARKS}]|_")
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    dtype=np.uint64,
)


@dataclass(frozen=True)
class Rules:
    """What counts as found.

    Attributes:
        near: Least Jaccard similarity of the sets of letter sequences.
        contained: Least share of a text's word sequences that a document holds.
        fewest_words: Texts with fewer are looked for as whole documents only.
    """

    near: float = 0.8
    contained: float = 0.8
    fewest_words: int = 8

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UserError: If one makes no sense.
        """
        for name in ("near", "contained"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} is a share: give more than 0 and at most 1, not {getattr(self, name)}.")
        if self.fewest_words < WORDS:
            raise UserError(f"fewest_words must be at least {WORDS}, the length of the sequences that are compared.")


def normalised_words(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class TextIndex:
    """Texts to look for, each different one once.

    Attributes:
        texts: As they were given, the first of those that are the same after normalisation.
        short: Numbers of those that are looked for as whole documents only.
    """

    def __init__(self, texts: Iterable[str], rules: Rules) -> None:
        """Index the texts; what has no letter or digit is left out.

        Raises:
            UserError: If ``datasketch`` is not installed.
        """
        self.texts: list[str] = []
        self.short: set[int] = set()
        self._rules = rules
        self._whole: dict[str, int] = {}
        self._empty, self._near = _new_lsh()
        sequences: list[np.ndarray] = []
        letters: list[int] = []
        for text in texts:
            words = normalised_words(text)
            joined = " ".join(words)
            if not words or joined in self._whole:
                continue
            number = self._whole[joined] = len(self.texts)
            self.texts.append(text)
            if len(words) < rules.fewest_words:
                self.short.add(number)
                sequences.append(np.zeros(0, dtype=np.uint64))
                continue
            sequences.append(_word_sequences(words))
            grams = _letter_sequences(joined)
            letters.append(len(grams))
            self._near.insert(number, self._sketch(grams), check_duplication=False)
        self._joined = list(self._whole)
        self._sizes = np.array([len(hashes) for hashes in sequences], dtype=np.int64)
        numbers = np.repeat(np.arange(len(sequences), dtype=np.int32), self._sizes)
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *sequences])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        self._letters = np.unique(np.array(letters, dtype=np.int64))

    def members(self, texts: Iterable[str]) -> set[int]:
        """Return the numbers of texts that were indexed."""
        joined = (" ".join(normalised_words(text)) for text in texts)
        return {self._whole[text] for text in joined if text in self._whole}

    def find(self, document: str) -> dict[int, str]:
        """Return the numbers of the texts that a document holds, and in what way."""
        places: list[np.ndarray] = []
        joined: str | None = None
        for words in _pieces(document):
            places.append(self._places(_word_sequences(words)))
            joined = " ".join(words) if len(document) <= LONG else None
        hits: dict[int, str] = {}
        held, counts = np.unique(self._numbers[np.unique(np.concatenate(places))], return_counts=True)
        for number in held[counts >= self._rules.contained * self._sizes[held] - 1e-9].tolist():
            hits[number] = "contained"
        if joined:
            hits |= dict.fromkeys(self._near_ones(joined), "near")
            if joined in self._whole:
                hits[self._whole[joined]] = "exact"
        return hits

    def _places(self, sequences: np.ndarray) -> np.ndarray:
        """Return where in the index sequences are that it has."""
        first, last = (np.searchsorted(self._hashes, sequences, side) for side in ("left", "right"))
        known = last > first
        ranges = [np.arange(a, b) for a, b in zip(first[known].tolist(), last[known].tolist(), strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])

    def _near_ones(self, joined: str) -> list[int]:
        """Return the texts that a normalised document nearly is."""
        grams = _letter_sequences(joined)
        if not self._fits(len(grams)):
            return []
        proposed = self._near.query(self._sketch(grams))
        return [number for number in proposed if self._similarity(number, grams) >= self._rules.near]

    def _fits(self, count: int) -> bool:
        """Say whether a text has about as many sequences of letters: if not, no two sets can be that similar."""
        place = int(np.searchsorted(self._letters, self._rules.near * count))
        return place < len(self._letters) and bool(self._letters[place] * self._rules.near <= count)

    def _similarity(self, number: int, grams: np.ndarray) -> float:
        other = _letter_sequences(self._joined[number])
        common = len(np.intersect1d(grams, other, assume_unique=True))
        return common / (len(grams) + len(other) - common)

    def _sketch(self, grams: np.ndarray) -> Any:
        made = self._empty.copy()
        made.update_batch((grams >> np.uint64(32)).tolist())
        return made


def _new_lsh() -> tuple[Any, Any]:
    """Return an empty sketch and empty hash tables."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise UserError(
            "Looking for near duplicates needs the package datasketch: 'pip install datasketch'. A study does without "
            "if it says 'leakage: off'."
        ) from error
    return MinHash(PERMUTATIONS, hashfunc=int), MinHashLSH(num_perm=PERMUTATIONS, params=(BANDS, ROWS))


def _pieces(document: str) -> Iterator[list[str]]:
    """Yield the words of a document; of a long one in pieces that overlap by all but one word of a sequence."""
    start = 0
    carried: list[str] = []
    while True:
        end = start + LONG
        gap = _BREAK.search(document, end, end + LONGEST_WORD)
        end = gap.start() if gap else end + LONGEST_WORD
        words = carried + normalised_words(document[start:end])
        yield words
        if end >= len(document):
            return
        start, carried = end, words[-(WORDS - 1) :]


def _word_sequences(words: Sequence[str]) -> np.ndarray:
    """Return a hash of each different sequence of words: (sequences,) of uint64, ascending."""
    codes = np.fromiter((zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words), np.uint64, len(words))
    return _windows(codes, WORDS)


def _letter_sequences(joined: str) -> np.ndarray:
    """Return a hash of each different sequence of letters, a space between words being one, ascending."""
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    return _windows(codes, LETTERS)


def _windows(codes: np.ndarray, length: int) -> np.ndarray:
    """Hash each window of codes, (n,), and return the different hashes, ascending."""
    count = len(codes) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        total += (codes[place : place + count] + np.uint64(1)) * _FACTORS[place]
    total ^= total >> np.uint64(29)
    total *= np.uint64(0xBF58476D1CE4E5B9)
    return np.unique(total ^ (total >> np.uint64(32)))
