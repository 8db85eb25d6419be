"""Near duplicates: documents that share most of their character n-grams with an earlier one.

Texts are normalized as in the search for contamination. MinHash (Broder, 1997) with locality-sensitive hashing
proposes pairs, which are then checked on the n-grams themselves, so there are no false positives. Signatures and bands
are in temporary files.
"""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.base.progress import Progress
from acclimate.base.shares import share_work, usable_cores
from acclimate.data.contamination import MAX_PIECE_CHARACTERS, batch_texts, iterate_pieces
from acclimate.data.ngrams import (
    CHARACTER_NGRAM_SIZE,
    NormalizedTexts,
    fold_text,
    hash_character_ngrams,
    normalize_words,
    permutations,
)
from acclimate.data.operations import EXAMPLE_CHARACTERS, EXAMPLES, Context, Operation, register
from acclimate.data.pool import Documents

PERMUTATIONS = 128
EMPTY = 2**32 - 1
"""Values of the signature of no n-grams."""
MISSED = 1e-3
"""Maximum probability that a pair with exactly the minimum similarity is not proposed."""
TOLERANCE = 0.15
"""Pairs are checked from this much below the minimum similarity, by the estimate of MinHash; 4 standard errors."""
SIGNED = 512
"""Documents that a process signs before the next takes its turn."""
BLOCK = 4096
"""Documents whose signatures are written, or read, at once."""
CACHED_DOCUMENTS = 4096
"""Documents whose n-grams are kept for further comparisons."""


def choose_rows(similarity: float) -> int:
    """Return the rows per band: as many, for few needless proposals, as miss at most :data:`MISSED` of the pairs.

    A pair of similarity s is proposed with probability 1 - (1 - s**rows)**(permutations // rows).
    """
    usable = [
        rows for rows in range(1, PERMUTATIONS + 1) if (1 - similarity**rows) ** (PERMUTATIONS // rows) <= MISSED
    ]
    return max(usable, default=1)


def hash_document_ngrams(text: str) -> np.ndarray:
    """Return the hashes of the character n-grams of a text, or of all of it if it is shorter than one (n-grams,)."""
    joined = " ".join(normalize_words(text))
    ngrams = hash_character_ngrams(joined)
    return ngrams if len(ngrams) or not joined else hash_character_ngrams(joined.ljust(5, "\0"))


def sign_texts(texts: Sequence[str]) -> np.ndarray:
    """Return the signatures of some texts, or of one of any length: uint32 of shape (texts, permutations)."""
    factors = permutations(PERMUTATIONS)
    long = len(texts) == 1 and len(texts[0]) > MAX_PIECE_CHARACTERS
    parts = list[np.ndarray]()
    for read in iterate_pieces(texts[0]) if long else [NormalizedTexts(list(map(fold_text, texts)))]:
        found = np.full((len(read.words), PERMUTATIONS), EMPTY, dtype=np.uint32)
        sizes = read.ends - read.starts
        longer = np.flatnonzero(sizes >= CHARACTER_NGRAM_SIZE)
        shorter = np.flatnonzero((sizes > 0) & (sizes < CHARACTER_NGRAM_SIZE))
        found[longer] = read.signatures(longer, factors)
        found[shorter] = (read.whole_hashes()[shorter] >> np.uint64(32)).astype(np.uint32)[:, None] * factors
        parts.append(found)
    return np.min(parts, axis=0) if long else parts[0]


@register(
    "duplicates",
    paper="Broder, 1997; Lee et al., ACL 2022",
    summary="all but near duplicates: of several similar documents the first",
)
@dataclass(frozen=True)
class Duplicates(Operation):
    """Drops documents that nearly equal an earlier one that is kept.

    Attributes:
        similarity: Minimum Jaccard similarity of the sets of character 5-grams of near duplicates.
        scope: Pairs that count: ``all``, those ``within`` a file or dataset, or those ``across`` two.
    """

    main: ClassVar[str] = "similarity"
    stays_in_control: ClassVar[bool] = True
    similarity: float = 0.8
    scope: Literal["all", "within", "across"] = "all"

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise UserError(f"Selection 'duplicates': similarity is above 0 and at most 1, not {self.similarity}.")

    def apply(self, documents: Documents, context: Context) -> Documents:
        """Compare every document with the similar ones before it that are kept."""
        folder = cache_folder() / "corpora"
        with tempfile.TemporaryFile(dir=folder) as one, tempfile.TemporaryFile(dir=folder) as two:
            signatures = np.memmap(one, np.uint32, "w+", shape=(len(documents), PERMUTATIONS))
            self._sign(documents, signatures, context.progress)
            rows = choose_rows(self.similarity)
            groups = np.memmap(two, np.int32, "w+", shape=(PERMUTATIONS // rows, len(documents)))
            for band in range(len(groups)):
                groups[band] = group_equal(signatures[:, band * rows : (band + 1) * rows])
            dropped = self._search(documents, signatures, groups, context)
        return documents.take(np.flatnonzero(~dropped))

    def _sign(self, documents: Documents, signatures: np.ndarray, progress: bool) -> None:
        """Write the MinHash signature of every document (documents, permutations)."""

        def sign(first: int, stop: int) -> None:
            for batch in batch_texts((text, None) for text in documents[first:stop]):
                signatures[first : first + len(batch)] = sign_texts([text for text, _ in batch])
                first += len(batch)

        with Progress("Hashing documents", len(documents), unit="documents", enabled=progress) as bar:
            share_work(sign, len(documents), SIGNED, usable_cores(), bar.update)

    def _search(
        self, documents: Documents, signatures: np.ndarray, groups: np.ndarray, context: Context
    ) -> np.ndarray:
        """Return which documents are dropped (documents,)."""
        dropped = np.zeros(len(documents), dtype=bool)
        kept_in: dict[tuple[int, int], list[int]] = {}
        found: Counter[str] = Counter()
        examples: list[dict[str, Any]] = []
        ngrams = functools.lru_cache(CACHED_DOCUMENTS)(lambda number: hash_document_ngrams(documents[number]))
        with Progress("Comparing documents", len(documents), unit="documents", enabled=context.progress) as bar:
            for number, places in _iterate_alike(groups):
                keys = [(band, group) for band, group in enumerate(places) if group >= 0]
                if signatures[number, 0] == EMPTY:  # no letter or digit: it has no n-gram to compare
                    keys = []
                proposed = sorted({other for key in keys for other in kept_in.get(key, ())})
                match = self._first_match(number, proposed, documents.source, signatures, ngrams)
                if match is None:
                    for key in keys:
                        kept_in.setdefault(key, []).append(number)
                else:
                    other, similarity = match
                    dropped[number] = True
                    found["within" if documents.source[other] == documents.source[number] else "across"] += 1
                    if len(examples) < EXAMPLES:
                        pair = {"kept": documents[other], "dropped": documents[number]}
                        shown = {name: " ".join(text.split())[:EXAMPLE_CHARACTERS] for name, text in pair.items()}
                        examples.append({**shown, "similarity": round(similarity, 4)})
                bar.update(number + 1)
        context.notes.update(within=found["within"], across=found["across"], pairs=examples)
        return dropped

    def _first_match(
        self, number: int, proposed: list[int], source: np.ndarray, signatures: np.ndarray, ngrams: Any
    ) -> tuple[int, float] | None:
        """Return the first proposed document that is a near duplicate, with the similarity."""
        others = np.array(proposed, dtype=np.int64)
        if self.scope != "all":
            others = others[(source[others] == source[number]) == (self.scope == "within")]
        estimate = (signatures[others] == signatures[number]).mean(axis=1) if len(others) else np.zeros(0)
        for other in others[estimate >= self.similarity - TOLERANCE].tolist():
            one, two = ngrams(number), ngrams(other)
            common = len(np.intersect1d(one, two, assume_unique=True))
            similarity = common / (len(one) + len(two) - common)
            if similarity >= self.similarity - 1e-12:
                return other, similarity
        return None


def group_equal(signatures: np.ndarray) -> np.ndarray:
    """Return a number for each group of documents with equal signatures; -1 for documents alone (documents,).

    Args:
        signatures: (documents, rows).
    """
    keys = np.zeros(len(signatures), dtype=np.uint64)
    for first in range(0, len(signatures), BLOCK):
        block = np.asarray(signatures[first : first + BLOCK], dtype=np.uint64)
        for column in block.T:  # the multiplier is odd, so that a step loses nothing; two keys may still collide
            keys[first : first + BLOCK] = (keys[first : first + BLOCK] ^ column) * np.uint64(0x9E3779B97F4A7C15)
            keys[first : first + BLOCK] ^= keys[first : first + BLOCK] >> np.uint64(29)
    _, group, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.where(counts[group] > 1, group, -1)


def _iterate_alike(groups: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield each document that is not alone in every band, with its groups, one for each band."""
    for first in range(0, groups.shape[1], BLOCK):
        block = np.asarray(groups[:, first : first + BLOCK])
        places = np.flatnonzero((block >= 0).any(axis=0))
        yield from zip((first + places).tolist(), block[:, places].T.tolist(), strict=True)
