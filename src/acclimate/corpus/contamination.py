"""Whether a corpus holds texts that a model is judged on: as a document, nearly, or inside a longer document.

The rules, on texts that are normalised (NFKC, case folded, only letters with their marks and digits kept, in words):

- *exact*: a document is the text.
- *near*: the sets of 5-letter sequences of the two have a Jaccard similarity of at least 0.8. MinHash (Broder, 1997)
  with locality-sensitive hashing proposes pairs, and the sets themselves decide: nothing is found that is not so, and
  a pair right at 0.8 is missed with a probability below 0.0001, (1 - 0.8 ** 5) ** 25.
- *contained*: the document holds at least 80 % of the text's different 5-word sequences.

Texts of fewer than eight words are looked for as whole documents only: inside others they occur by chance. A letter of
Chinese or Japanese counts as a word.

Texts that are looked for in documents, and an index that finds them.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from acclimate.errors import UserError
from acclimate.progress import Progress
from acclimate.unicode import COMBINING_MARKS

WORD_NGRAM_SIZE, LETTER_NGRAM_SIZE = 5, 5
"""Lengths of the sequences that are compared, in words for *contained* and in letters for *near*."""
NUM_PERMUTATIONS, NUM_BANDS, ROWS_PER_BAND = 128, 25, 5
"""Of MinHash, and how the hash tables cut them: a pair of similarity s is proposed with 1 - (1 - s**5)**25."""
MAX_PIECE_CHARACTERS = 1 << 20
"""Letters after which a document is read in pieces, so that its words need not be in memory together."""
MAX_WORD_CHARACTERS = 1000

_CJK_RANGES = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD_PATTERN = re.compile(rf"[{_CJK_RANGES}]|[^\W_{_CJK_RANGES}]+(?:[{COMBINING_MARKS}]+[^\W_{_CJK_RANGES}]*)*")
_WORD_BREAK_PATTERN = re.compile(rf"[^\w{COMBINING_MARKS}]|_")
_HASH_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    dtype=np.uint64,
)


@dataclass(frozen=True)
class MatchRules:
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
        if self.fewest_words < WORD_NGRAM_SIZE:
            raise UserError(
                f"fewest_words must be at least {WORD_NGRAM_SIZE}, the length of the sequences that are compared."
            )


def normalize_words(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    return _WORD_PATTERN.findall(unicodedata.normalize("NFKC", text).casefold())


class TextIndex:
    """Texts to look for, each different one once.

    Attributes:
        texts: As they were given, the first of those that are the same after normalisation.
        short: Numbers of those that are looked for as whole documents only.
    """

    def __init__(self, texts: Iterable[str], rules: MatchRules) -> None:
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
            words = normalize_words(text)
            joined = " ".join(words)
            if not words or joined in self._whole:
                continue
            number = self._whole[joined] = len(self.texts)
            self.texts.append(text)
            if len(words) < rules.fewest_words:
                self.short.add(number)
                sequences.append(np.zeros(0, dtype=np.uint64))
                continue
            sequences.append(_hash_word_ngrams(words))
            grams = _hash_letter_ngrams(joined)
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
        joined = (" ".join(normalize_words(text)) for text in texts)
        return {self._whole[text] for text in joined if text in self._whole}

    def find(self, document: str) -> dict[int, str]:
        """Return the numbers of the texts that a document holds, and in what way."""
        places: list[np.ndarray] = []
        joined: str | None = None
        for words in _iterate_word_pieces(document):
            places.append(self._places(_hash_word_ngrams(words)))
            joined = " ".join(words) if len(document) <= MAX_PIECE_CHARACTERS else None
        hits: dict[int, str] = {}
        held, counts = np.unique(self._numbers[np.unique(np.concatenate(places))], return_counts=True)
        for number in held[counts >= self._rules.contained * self._sizes[held] - 1e-9].tolist():
            hits[number] = "contained"
        if joined:
            hits |= dict.fromkeys(self._find_near_texts(joined), "near")
            if joined in self._whole:
                hits[self._whole[joined]] = "exact"
        return hits

    def _places(self, sequences: np.ndarray) -> np.ndarray:
        """Return where in the index sequences are that it has."""
        first, last = (np.searchsorted(self._hashes, sequences, side) for side in ("left", "right"))
        known = last > first
        ranges = [np.arange(a, b) for a, b in zip(first[known].tolist(), last[known].tolist(), strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])

    def _find_near_texts(self, joined: str) -> list[int]:
        """Return the texts that a normalised document nearly is."""
        grams = _hash_letter_ngrams(joined)
        if not self._has_similar_size(len(grams)):
            return []
        proposed = self._near.query(self._sketch(grams))
        return [number for number in proposed if self._similarity(number, grams) >= self._rules.near]

    def _has_similar_size(self, count: int) -> bool:
        """Say whether a text has about as many sequences of letters: if not, no two sets can be that similar."""
        place = int(np.searchsorted(self._letters, self._rules.near * count))
        return place < len(self._letters) and bool(self._letters[place] * self._rules.near <= count)

    def _similarity(self, number: int, grams: np.ndarray) -> float:
        other = _hash_letter_ngrams(self._joined[number])
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
    return MinHash(NUM_PERMUTATIONS, hashfunc=int), MinHashLSH(
        num_perm=NUM_PERMUTATIONS, params=(NUM_BANDS, ROWS_PER_BAND)
    )


def _iterate_word_pieces(document: str) -> Iterator[list[str]]:
    """Yield the words of a document; of a long one in pieces that overlap by all but one word of a sequence."""
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
    """Return a hash of each different sequence of words: (sequences,) of uint64, ascending."""
    codes = np.fromiter((zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words), np.uint64, len(words))
    return _hash_windows(codes, WORD_NGRAM_SIZE)


def _hash_letter_ngrams(joined: str) -> np.ndarray:
    """Return a hash of each different sequence of letters, a space between words being one, ascending."""
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    return _hash_windows(codes, LETTER_NGRAM_SIZE)


def _hash_windows(codes: np.ndarray, length: int) -> np.ndarray:
    """Hash each window of codes, (n,), and return the different hashes, ascending."""
    count = len(codes) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        total += (codes[place : place + count] + np.uint64(1)) * _HASH_FACTORS[place]
    total ^= total >> np.uint64(29)
    total *= np.uint64(0xBF58476D1CE4E5B9)
    return np.unique(total ^ (total >> np.uint64(32)))


MAX_EXAMPLES = 20
MAX_EXAMPLE_CHARACTERS = 200
"""How many finds are kept, and how many letters of each are shown."""
MATCH_KINDS = ("exact", "near", "contained")


@dataclass
class ContaminationReport:
    """What was found of some groups of texts in a corpus.

    Attributes:
        documents: Documents that were read.
        flagged: How many of them hold a text, in any way.
        groups: For each group: ``texts``, different ones after normalisation; ``short``, those looked for as whole
            documents only; ``found``, those that are in the corpus; and of these as ``exact``, ``near`` and
            ``contained``, each text once, under the first that holds.
        examples: The first finds: ``group``, ``kind``, and the beginnings of ``text`` and ``document``.
        digests: Of the flagged documents, for :meth:`acclimate.corpus.Corpus.without`, as hexadecimal.
    """

    documents: int = 0
    flagged: int = 0
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def summarize_contamination(found: Mapping[str, Any], places: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Summarise a :class:`ContaminationReport`, given as plain values, with task and split in place of groups."""
    examples = [
        {**places[example["group"]], **{name: value for name, value in example.items() if name != "group"}}
        for example in found["examples"]
    ]
    return {
        "documents": found["documents"],
        "flagged": found["flagged"],
        "texts": [{**places[group], **counts} for group, counts in found["groups"].items()],
        "examples": examples,
    }


def hash_document(data: bytes) -> bytes:
    """Return what a corpus knows a document by: 12 bytes for its UTF-8."""
    return blake2b(data, digest_size=12).digest()


def find_contamination(
    documents: Iterable[str],
    groups: Mapping[str, Sequence[str]],
    rules: MatchRules | None = None,
    *,
    progress: bool = False,
) -> ContaminationReport:
    """Look for texts in the documents of a corpus, reading it once.

    Memory holds the texts with their index, and 24 characters for each flagged document; it does not grow with the
    corpus.

    Args:
        documents: A :class:`acclimate.corpus.Corpus`, or other texts.
        groups: The texts, by name of the group: a task and a split, for instance.
        rules: What counts as found.
        progress: Show a bar.

    Raises:
        UserError: If ``datasketch`` is not installed.
    """
    index = TextIndex([text for texts in groups.values() for text in texts], rules or MatchRules())
    members = {name: index.members(texts) for name, texts in groups.items()}
    best: dict[int, str] = {}
    found = ContaminationReport()
    with Progress("leakage", None, unit="documents", enabled=progress) as bar:
        for document in documents:
            found.documents += 1
            bar.at(found.documents)
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
