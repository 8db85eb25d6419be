"""Words of texts without regard to case and punctuation, and hashes of n-grams of many texts at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import regex

_CJK = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
_ALPHANUMERIC = rf"[[\p{{L}}\p{{N}}]--{_CJK}]"
WORD_PATTERN = regex.compile(rf"{_CJK}|{_ALPHANUMERIC}[{_ALPHANUMERIC}||\p{{M}}]*", regex.V1)
_ASCII_WORD_PATTERN = re.compile(r"[a-z0-9]+")
CHARACTER_NGRAM_SIZE = 5
_ALNUM, _MARK, _SINGLE = np.uint8(1), np.uint8(2), np.uint8(4)
"""Classes of characters: of words, marks that continue one, and those that are a word each; a character may be two."""
_BASE = 0xC2B2AE3D27D4EB4F
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    dtype=np.uint64,
)


def normalize_words(text: str) -> list[str]:
    """Return the normalized words of a text."""
    if text.isascii():  # the same, several times as fast
        return _ASCII_WORD_PATTERN.findall(text.lower())
    return split_words(fold_text(text))


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are; each Chinese or Japanese character is a word."""
    return WORD_PATTERN.findall(text)


def hash_character_ngrams(joined: str) -> np.ndarray:
    """Return the hashes of the distinct character n-grams, spaces included: uint64 of shape (n-grams,), ascending."""
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    count = len(codes) - CHARACTER_NGRAM_SIZE + 1
    total = np.zeros(max(count, 0), dtype=np.uint64)
    for offset, factor in enumerate(_FACTORS):
        total += (codes[offset : offset + len(total)] + np.uint64(1)) * factor
    return np.unique(mix(total))


def mix(hashes: np.ndarray) -> np.ndarray:
    """Return hashes, of which every bit depends on all bits of the given ones; these are overwritten."""
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(32)
    return hashes


def fold_text(text: str) -> str:
    """Return a text without differences of case and of Unicode form."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


@cache
def _classes() -> np.ndarray:
    """Return the class of each character (0x110000,)."""
    found = np.zeros(0x110000, dtype=np.uint8)
    everything = "".join(map(chr, range(len(found))))
    for pattern, bit in ((_ALPHANUMERIC, _ALNUM), (r"\p{M}", _MARK), (_CJK, _SINGLE)):
        for run in regex.finditer(f"{pattern}+", everything, regex.V1):
            found[slice(*run.span())] |= bit
    return found


@cache
def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the powers of the base of the hash, and of its inverse, modulo 2**64 (size,)."""
    found = np.ones((2, size), dtype=np.uint64)
    found[:, 1:] = np.array([[_BASE], [pow(_BASE, -1, 1 << 64)]], dtype=np.uint64)
    np.cumprod(found, axis=1, out=found)
    return found[0], found[1]


def _find_words(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first place of each word, and the one after its last (words,); see :data:`WORD_PATTERN`."""
    if codes.dtype == np.uint8:
        inside = _classes()[:128][codes] > 0
        single = np.zeros_like(inside)
    else:
        classes = _classes()[codes]
        inside, single, mark = classes & _ALNUM > 0, classes & _SINGLE > 0, classes & _MARK > 0
        if mark.any():
            base = np.maximum.accumulate(np.where(mark, 0, np.arange(len(codes))))
            continues = mark & inside[base]
            inside |= continues
            single &= ~continues
    before, after = np.zeros_like(inside), np.zeros_like(inside)
    before[1:], after[:-1] = inside[:-1], inside[1:]
    return np.flatnonzero(single | (inside & ~before)), np.flatnonzero(single | (inside & ~after)) + 1


class NormalizedTexts:
    """The normalized words of some texts, each followed by a blank, in one array.

    The hash of any part takes the same time whatever its length: it is a polynomial of the characters, which follows
    from two prefix sums. About 100 bytes of memory are needed per character.

    Attributes:
        words: Number of words of each text (texts,).
        starts: First character of each text (texts,).
        ends: The character after its last, without the last blank (texts,).
    """

    def __init__(self, folded: Sequence[str]) -> None:
        """Split texts, of all together at most a few million characters, that :func:`fold_text` returned."""
        whole = "".join(f"{text}\n" for text in folded)
        if whole.isascii():
            codes = np.frombuffer(whole.encode("ascii"), np.uint8)
        else:
            codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), np.uint32)
        starts, ends = _find_words(codes)
        bounds = np.cumsum([len(text) + 1 for text in folded], dtype=np.int64)
        self.words = np.diff(np.searchsorted(starts, bounds), prepend=0)
        lengths = ends - starts + 1
        self._word_ends = np.cumsum(lengths)
        self._word_starts = self._word_ends - lengths
        places = np.repeat(starts - self._word_starts, lengths)
        places += np.arange(len(places))
        self._codes = codes[places]
        self._codes[self._word_ends - 1] = ord(" ")
        limits = np.concatenate([[0], self._word_ends])[np.concatenate([[0], np.cumsum(self.words)])]
        self.starts, self.ends = limits[:-1], np.maximum(limits[1:] - 1, limits[:-1])
        powers, self._inverses = _powers(1 << max(16, len(places).bit_length()))
        self._sums = np.zeros(len(places) + 1, dtype=np.uint64)
        np.cumsum(self._codes * powers[: len(places)], out=self._sums[1:])

    def strings(self) -> Iterator[str]:
        """Yield the words of each text, joined by blanks."""
        encoding = "ascii" if self._codes.dtype == np.uint8 else "utf-32-le"
        joined = self._codes.tobytes().decode(encoding, "surrogatepass")
        return (joined[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def string(self, text: int) -> str:
        """Return the words of a text, joined by blanks."""
        return "".join(map(chr, self._codes[self.starts[text] : self.ends[text]].tolist()))

    def _hash(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return mix((self._sums[ends] - self._sums[starts]) * self._inverses[starts])

    def whole_hashes(self) -> np.ndarray:
        """Return the hash of each text (texts,)."""
        return self._hash(self.starts, self.ends)

    def word_ngrams(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of the n-grams of all texts in their order, and the text of each (n-grams,)."""
        owners = np.repeat(np.arange(len(self.words)), self.words)
        count = max(len(owners) - size + 1, 0)
        same = np.flatnonzero(owners[:count] == owners[len(owners) - count :])
        return self._hash(self._word_starts[same], self._word_ends[same + size - 1] - 1), owners[same]

    def character_ngrams(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return 32-bit hashes of the n-grams of some texts, all long enough, and where those of each text start.

        Returns:
            uint32 of shape (n-grams,), with those that occur several times, and int64 of shape (texts,).
        """
        size = CHARACTER_NGRAM_SIZE
        count = max(len(self._codes) - size + 1, 0)
        hashes = (self._sums[size : size + count] - self._sums[:count]) * self._inverses[:count]
        short = (mix(hashes) >> np.uint64(32)).astype(np.uint32)
        spans = zip(self.starts[texts].tolist(), (self.ends[texts] - size + 1).tolist(), strict=True)
        parts = [short[start:end] for start, end in spans]
        sizes = self.ends[texts] - self.starts[texts] - size + 1
        return np.concatenate([short[:0], *parts]), np.cumsum(sizes) - sizes

    def signatures(self, texts: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Return the MinHash signatures (Broder, 1997) of some texts, all long enough for a character n-gram.

        Args:
            texts: Numbers of the texts.
            factors: Odd uint32, one for each permutation.

        Returns:
            uint32 of shape (texts, permutations).
        """
        found = np.empty((len(factors), len(texts)), dtype=np.uint32)
        if len(texts):
            hashes, starts = self.character_ngrams(texts)
            product = np.empty_like(hashes)
            for factor, row in zip(factors, found, strict=True):
                np.minimum.reduceat(np.multiply(hashes, factor, out=product), starts, out=row)
        return found.T


def permutations(count: int) -> np.ndarray:
    """Return the factors of as many permutations of 32-bit hashes: odd uint32 (count,)."""
    return np.random.default_rng(0).integers(2**31, size=count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)


class HashIndex:
    """The numbers that belong to hashes, found for many hashes at once."""

    def __init__(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Sort the hashes, uint64, each with a number; a hash may have several (entries,)."""
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        bits = min(max(len(hashes).bit_length() + 4, 16), 26)
        self._shift = np.uint64(64 - bits)
        self._known = np.zeros(1 << bits, dtype=bool)  # most hashes are not there, and this says so at once
        self._known[hashes >> self._shift] = True

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the hashes that the index has, and their numbers, one pair after the other (pairs,)."""
        places = np.flatnonzero(self._known[hashes >> self._shift])
        first, last = (np.searchsorted(self._hashes, hashes[places], side) for side in ("left", "right"))
        counts = last - first
        entries = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return np.repeat(places, counts), self._numbers[entries]
