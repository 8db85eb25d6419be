"""Contamination: finds evaluation texts in a training corpus.

All texts are normalized first (NFKC, case folding) and reduced to words of letters and digits; each Chinese or
Japanese character is a word. A document matches a text in one of three ways:

- *exact*: the document equals the text.
- *near*: the sets of character 5-grams have a Jaccard similarity of at least 0.8. MinHash (Broder, 1997) with
  locality-sensitive hashing proposes pairs, which are then checked on the sets themselves. There are therefore no
  false positives, and a pair of similarity 0.8 is missed with a probability of (1 - 0.8 ** 5) ** 25 < 0.0001.
- *contained*: the document contains at least 80 % of the distinct word 5-grams of the text.

Texts of fewer than eight words are only compared with whole documents, since they occur inside others by chance.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import regex

from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.data.documents import hash_document

WORD_NGRAM_SIZE, CHARACTER_NGRAM_SIZE = 5, 5
NUM_PERMUTATIONS, NUM_BANDS, ROWS_PER_BAND = 128, 25, 5
"""MinHash: a pair of similarity s is proposed with probability 1 - (1 - s**5)**25."""
MAX_PIECE_CHARACTERS = 1 << 20
"""Longer documents are read in pieces of this size, to bound memory."""
MAX_WORD_CHARACTERS = 1000

_CJK = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
_ALPHANUMERIC = rf"[[\p{{L}}\p{{N}}]--{_CJK}]"
WORD_PATTERN = regex.compile(rf"{_CJK}|{_ALPHANUMERIC}[{_ALPHANUMERIC}||\p{{M}}]*", regex.V1)
_ASCII_WORD_PATTERN = re.compile(r"[a-z0-9]+")
_WORD_BREAK_PATTERN = regex.compile(r"[^\p{L}\p{N}\p{M}]")
_HASH_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    dtype=np.uint64,
)


@dataclass(frozen=True)
class MatchRules:
    """Thresholds of a match.

    Attributes:
        near: Minimum Jaccard similarity of the sets of character n-grams, in (0, 1].
        contained: Minimum share of a text's word n-grams that a document must contain, in (0, 1].
        fewest_words: Texts with fewer words are compared only with whole documents.
    """

    near: float = 0.8
    contained: float = 0.8
    fewest_words: int = 8

    def __post_init__(self) -> None:
        for name in ("near", "contained"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}.")
        if self.fewest_words < WORD_NGRAM_SIZE:
            raise UserError(f"fewest_words must be at least {WORD_NGRAM_SIZE}, the length of the word n-grams.")


def normalize_words(text: str) -> list[str]:
    """Return the normalized words of a text."""
    if text.isascii():  # the same, several times as fast
        return _ASCII_WORD_PATTERN.findall(text.lower())
    return split_words(unicodedata.normalize("NFKC", text).casefold())


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are; each Chinese or Japanese character is a word."""
    return WORD_PATTERN.findall(text)


class TextIndex:
    """An index of the texts to search for, without duplicates.

    Attributes:
        texts: The original texts; of those that are equal after normalization, the first.
        short: Indices of the texts that are only compared with whole documents.
    """

    def __init__(self, texts: Iterable[str], rules: MatchRules) -> None:
        """Index the texts; a text without a letter or digit is left out.

        Raises:
            UserError: If ``datasketch`` is not installed.
        """
        self.texts: list[str] = []
        self.short: set[int] = set()
        self._rules = rules
        self._whole: dict[str, int] = {}
        self._empty, self._near = _new_lsh()
        word_ngrams: list[np.ndarray] = []
        ngram_counts: list[int] = []
        for text in texts:
            words = normalize_words(text)
            joined = " ".join(words)
            if not words or joined in self._whole:
                continue
            number = self._whole[joined] = len(self.texts)
            self.texts.append(text)
            if len(words) < rules.fewest_words:
                self.short.add(number)
                word_ngrams.append(np.zeros(0, dtype=np.uint64))
                continue
            word_ngrams.append(_hash_word_ngrams(words))
            character_ngrams = hash_character_ngrams(joined)
            ngram_counts.append(len(character_ngrams))
            self._near.insert(number, self._sketch(character_ngrams), check_duplication=False)
        self._joined = list(self._whole)
        self._sizes = np.array([len(hashes) for hashes in word_ngrams], dtype=np.int64)
        numbers = np.repeat(np.arange(len(word_ngrams), dtype=np.int32), self._sizes)
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *word_ngrams])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        self._ngram_counts = np.unique(np.array(ngram_counts, dtype=np.int64))

    def members(self, texts: Iterable[str]) -> set[int]:
        """Return the indices of the given texts that are in the index."""
        joined = (" ".join(normalize_words(text)) for text in texts)
        return {self._whole[text] for text in joined if text in self._whole}

    def find(self, document: str) -> dict[int, str]:
        """Return the indices of the texts that a document matches, each with its kind of match."""
        entries: list[np.ndarray] = []
        joined: str | None = None
        for words in _iterate_word_pieces(document):
            entries.append(self._find_entries(_hash_word_ngrams(words)))
            joined = " ".join(words) if len(document) <= MAX_PIECE_CHARACTERS else None
        hits: dict[int, str] = {}
        candidates, counts = np.unique(self._numbers[np.unique(np.concatenate(entries))], return_counts=True)
        for number in candidates[counts >= self._rules.contained * self._sizes[candidates] - 1e-9].tolist():
            hits[number] = "contained"
        if joined:
            hits |= dict.fromkeys(self._find_near_texts(joined), "near")
            if joined in self._whole:
                hits[self._whole[joined]] = "exact"
        return hits

    def _find_entries(self, ngrams: np.ndarray) -> np.ndarray:
        """Return the positions of the index that hold one of these n-grams."""
        first, last = (np.searchsorted(self._hashes, ngrams, side) for side in ("left", "right"))
        known = last > first
        ranges = [np.arange(a, b) for a, b in zip(first[known].tolist(), last[known].tolist(), strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])

    def _find_near_texts(self, joined: str) -> list[int]:
        """Return the indices of the near duplicates of a normalized document."""
        ngrams = hash_character_ngrams(joined)
        if not self._has_similar_size(len(ngrams)):
            return []
        proposed = self._near.query(self._sketch(ngrams))
        return [number for number in proposed if self._similarity(number, ngrams) >= self._rules.near]

    def _has_similar_size(self, count: int) -> bool:
        """Return whether any text has about as many n-grams; sets of very different sizes cannot be similar."""
        nearest = int(np.searchsorted(self._ngram_counts, self._rules.near * count))
        return nearest < len(self._ngram_counts) and bool(self._ngram_counts[nearest] * self._rules.near <= count)

    def _similarity(self, number: int, ngrams: np.ndarray) -> float:
        other = hash_character_ngrams(self._joined[number])
        common = len(np.intersect1d(ngrams, other, assume_unique=True))
        return common / (len(ngrams) + len(other) - common)

    def _sketch(self, ngrams: np.ndarray) -> Any:
        sketch = self._empty.copy()
        sketch.update_batch((ngrams >> np.uint64(32)).tolist())
        return sketch


def _new_lsh() -> tuple[Any, Any]:
    """Return an empty MinHash sketch and an empty LSH index."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise UserError(
            "The search for contamination needs the package datasketch: 'pip install datasketch'. To skip the search "
            "in a study, set 'leakage: off'."
        ) from error
    return MinHash(NUM_PERMUTATIONS, hashfunc=int), MinHashLSH(
        num_perm=NUM_PERMUTATIONS, params=(NUM_BANDS, ROWS_PER_BAND)
    )


def _iterate_word_pieces(document: str) -> Iterator[list[str]]:
    """Yield the words of a document, a long one in pieces; the overlap keeps every word n-gram in one piece."""
    start = 0
    carried: list[str] = []
    while True:
        end = start + MAX_PIECE_CHARACTERS
        gap = _WORD_BREAK_PATTERN.search(document, end, end + MAX_WORD_CHARACTERS)
        end = gap.start() if gap else end + MAX_WORD_CHARACTERS
        words = carried + normalize_words(document[start:end])
        yield words
        if end >= len(document):
            return
        start, carried = end, words[-(WORD_NGRAM_SIZE - 1) :]


def _hash_word_ngrams(words: Sequence[str]) -> np.ndarray:
    """Return the hashes of the distinct word n-grams: uint64 of shape (n-grams,), ascending."""
    codes = np.fromiter((zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words), np.uint64, len(words))
    return _hash_windows(codes, WORD_NGRAM_SIZE)


def hash_character_ngrams(joined: str) -> np.ndarray:
    """Return the hashes of the distinct character n-grams, spaces included: uint64 of shape (n-grams,), ascending."""
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    return _hash_windows(codes, CHARACTER_NGRAM_SIZE)


def _hash_windows(codes: np.ndarray, length: int) -> np.ndarray:
    """Return the distinct hashes of all windows of a sequence of codes (n,), ascending."""
    count = len(codes) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        total += (codes[offset : offset + count] + np.uint64(1)) * _HASH_FACTORS[offset]
    total ^= total >> np.uint64(29)
    total *= np.uint64(0xBF58476D1CE4E5B9)
    return np.unique(total ^ (total >> np.uint64(32)))


MAX_EXAMPLES = 20
MAX_EXAMPLE_CHARACTERS = 200
MATCH_KINDS = ("exact", "near", "contained")


@dataclass
class ContaminationReport:
    """The evaluation texts that were found in a corpus.

    Attributes:
        documents: Number of documents read.
        flagged: Number of documents that match a text in any way.
        groups: Counts for each group of texts: ``texts``, distinct after normalization; ``short``, compared with whole
            documents only; ``found``, in the corpus; and of these ``exact``, ``near`` and ``contained``. Each text
            counts once, under the first kind that applies.
        examples: The first matches: ``group``, ``kind``, and the beginnings of ``text`` and ``document``.
        digests: Hexadecimal digests of the flagged documents, for :meth:`acclimate.data.Corpus.without`.
    """

    documents: int = 0
    flagged: int = 0
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def summarize_contamination(found: Mapping[str, Any], places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize a :class:`ContaminationReport`, given as plain values.

    Args:
        found: The report.
        places: Task and split of each group, which replace its name, and further columns of its counts.
    """
    examples = [
        {
            **{key: places[example["group"]][key] for key in ("task", "split")},
            **{name: value for name, value in example.items() if name != "group"},
        }
        for example in found["examples"]
    ]
    return {
        "documents": found["documents"],
        "flagged": found["flagged"],
        "texts": [{**places[group], **counts} for group, counts in found["groups"].items()],
        "examples": examples,
    }


def find_contamination(
    documents: Iterable[str],
    groups: Mapping[str, Sequence[str]],
    rules: MatchRules | None = None,
    *,
    progress: bool = False,
) -> ContaminationReport:
    """Search the documents of a corpus for evaluation texts, in one pass.

    Memory holds the index of the texts and a digest of each flagged document, not the corpus.

    Args:
        documents: A :class:`acclimate.data.documents.Corpus` or other texts.
        groups: The texts to search for, by the name of their group, such as the split of a task.
        rules: Thresholds of a match.
        progress: Whether to show a progress bar.

    Raises:
        UserError: If ``datasketch`` is not installed.
    """
    index = TextIndex([text for texts in groups.values() for text in texts], rules or MatchRules())
    members = {name: index.members(texts) for name, texts in groups.items()}
    best: dict[int, str] = {}
    found = ContaminationReport()
    with Progress("Searching for contamination", None, unit="documents", enabled=progress) as bar:
        for document in documents:
            found.documents += 1
            bar.update(found.documents)
            if hits := index.find(document):
                found.flagged += 1
                found.digests.append(hash_document(document.encode("utf-8", "surrogatepass")).hex())
            for number, kind in hits.items():
                if number not in best and len(found.examples) < MAX_EXAMPLES:
                    group = next(name for name, numbers in members.items() if number in numbers)
                    shown = {
                        "text": index.texts[number][:MAX_EXAMPLE_CHARACTERS],
                        "document": document[:MAX_EXAMPLE_CHARACTERS],
                    }
                    found.examples.append({"group": group, "kind": kind, **shown})
                best[number] = min(kind, best.get(number, kind), key=MATCH_KINDS.index)
    for name, numbers in members.items():
        kinds = [best[number] for number in numbers if number in best]
        short = sum(number in index.short for number in numbers)
        counts = {kind: kinds.count(kind) for kind in MATCH_KINDS}
        found.groups[name] = {"texts": len(numbers), "short": short, "found": len(kinds), **counts}
    return found
