"""Contamination: finds evaluation texts in a training corpus.

All texts are normalized first (NFKC, case folding) and reduced to words of letters and digits; each Chinese or
Japanese character is a word. A document matches a text in one of three ways:

- *exact*: the document equals the text.
- *near*: the sets of character 5-grams have a Jaccard similarity of at least 0.8. MinHash (Broder, 1997) with
  locality-sensitive hashing proposes pairs, which are then checked on the sets themselves. There are therefore no
  false positives, and a pair of similarity 0.8 is missed with a probability of (1 - 0.8 ** 3) ** 13 < 0.0001.
- *contained*: the document contains at least 80 % of the distinct word 5-grams of the text.

Texts of fewer than eight words are only compared with whole documents, since they occur inside others by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import regex

from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.data.documents import hash_document
from acclimate.data.ngrams import (
    CHARACTER_NGRAM_SIZE,
    HashIndex,
    NormalizedTexts,
    fold_text,
    hash_character_ngrams,
    mix,
    permutations,
)

T = TypeVar("T")
WORD_NGRAM_SIZE = 5
MISSED = 1e-4
"""Maximum probability that a pair with exactly the minimum similarity is not proposed."""
ROWS_PER_BAND, MIN_BANDS, MAX_BANDS = 3, 5, 100
"""MinHash: a pair of similarity s is proposed with probability 1 - (1 - s**3)**bands."""
TOLERANCE = 5.0
"""Proposed pairs are checked from this many standard errors of MinHash below the minimum similarity."""
BATCH_CHARACTERS = 1 << 18
"""Documents that are searched at once have about so many characters."""
MAX_PIECE_CHARACTERS = 1 << 20
"""Longer documents are read in pieces of this size, to bound memory."""
MAX_WORD_CHARACTERS = 1000
_WORD_BREAK_PATTERN = regex.compile(r"[^\p{L}\p{N}\p{M}]")


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


class Match(NamedTuple):
    """A match of a document and a text.

    Attributes:
        kind: ``"exact"``, ``"near"`` or ``"contained"``.
        share: The Jaccard similarity of a near match, the share of the text's word n-grams of a contained one, else 1.
    """

    kind: str
    share: float


class TextIndex:
    """An index of the texts to search for, without duplicates.

    A document that contains a text has one of its rarest word n-grams, as many as it may lack and one more. Only these
    are looked up; the others are compared where one is found.

    Attributes:
        texts: The original texts; of those that are equal after normalization, the first.
        short: Indices of the texts that are only compared with whole documents.
    """

    def __init__(self, texts: Iterable[str], rules: MatchRules) -> None:
        """Index the texts; a text without a letter or digit is left out."""
        self.texts: list[str] = []
        self.short: set[int] = set()
        self._rules = rules
        self._numbers: dict[str, int] = {}
        bands = np.log(MISSED) / np.log1p(-min(rules.near**ROWS_PER_BAND, 1 - 1e-9))
        self._bands = int(np.clip(np.ceil(bands), MIN_BANDS, MAX_BANDS))
        self._factors = permutations(self._bands * ROWS_PER_BAND)
        whole, ngrams, owners, signatures, signed = ([] for _ in range(5))
        for batch in batch_texts((text, None) for text in texts):
            read = NormalizedTexts([fold_text(text) for text, _ in batch])
            new = np.full(len(batch), -1)
            for place, joined in enumerate(read.strings()):
                if joined and joined not in self._numbers:
                    new[place] = self._numbers[joined] = len(self.texts)
                    self.texts.append(batch[place][0])
            kept = new >= 0
            short = kept & (read.words < rules.fewest_words)
            self.short.update(new[short].tolist())
            whole.append(read.whole_hashes()[kept])
            hashes, places = read.word_ngrams(WORD_NGRAM_SIZE)
            longer = (kept & ~short)[places]
            ngrams.append(hashes[longer])
            owners.append(new[places[longer]])
            chosen = np.flatnonzero(kept & ~short)
            signatures.append(read.signatures(chosen, self._factors))
            signed.append(new[chosen])
        numbers = np.arange(len(self.texts))
        self._joined = list(self._numbers)
        self._whole = HashIndex(_join(whole, np.uint64), numbers)
        self._rare = self._index_rare_ngrams(_join(ngrams, np.uint64), _join(owners, np.int64))
        self._signatures = np.zeros((len(numbers), len(self._factors)), dtype=np.uint32)
        self._signatures[_join(signed, np.int64)] = np.concatenate([self._signatures[:0], *signatures])
        keys = self._band_keys(self._signatures[_join(signed, np.int64)])
        self._near = HashIndex(keys.ravel(), np.repeat(_join(signed, np.int64), self._bands))

    def _index_rare_ngrams(self, hashes: np.ndarray, owners: np.ndarray) -> HashIndex:
        """Keep the distinct n-grams of each text; return an index of the rarest of each."""
        order = np.lexsort((hashes, owners))
        hashes, owners = hashes[order], owners[order]
        first = np.ones(len(hashes), dtype=bool)
        first[1:] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
        hashes, owners = hashes[first], owners[first]
        sizes = np.bincount(owners, minlength=len(self.texts))
        self._ngrams, self._limits = hashes, np.concatenate([[0], np.cumsum(sizes)])
        _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        order = np.lexsort((hashes, counts[inverse], owners))
        rank = np.arange(len(order)) - self._limits[owners]
        needed = np.ceil(self._rules.contained * sizes - 1e-9).astype(np.int64)
        rare = order[rank <= (sizes - needed)[owners]]
        return HashIndex(hashes[rare], owners[rare])

    def _band_keys(self, signatures: np.ndarray) -> np.ndarray:
        """Return a hash of each band of signatures, which differs between bands (texts, bands)."""
        keys = np.tile(np.arange(self._bands, dtype=np.uint64), (len(signatures), 1))
        for row in range(ROWS_PER_BAND):
            keys = mix((keys << np.uint64(32)) ^ (keys >> np.uint64(7)) ^ signatures[:, row::ROWS_PER_BAND])
        return keys

    def members(self, texts: Iterable[str]) -> Iterator[int | None]:
        """Yield the index of each of the given texts, or None if it is not in the index."""
        for batch in batch_texts((text, None) for text in texts):
            yield from map(self._numbers.get, NormalizedTexts([fold_text(text) for text, _ in batch]).strings())

    def find(self, document: str) -> dict[int, Match]:
        """Return the indices of the texts that a document matches, each with its match."""
        return next(hits for _, _, hits in self.search([(document, None)]))

    def search(self, documents: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T, dict[int, Match]]]:
        """Yield documents in their order, each with what was given with it and with what :meth:`find` returns."""
        for batch in batch_texts(documents):
            if len(batch[0][0]) > MAX_PIECE_CHARACTERS:  # it is alone
                found = [self._find_in_pieces(batch[0][0])]
            else:
                found = self._find_in_batch([text for text, _ in batch])
            yield from ((text, other, hits) for (text, other), hits in zip(batch, found, strict=True))

    def _find_in_batch(self, documents: list[str]) -> list[dict[int, Match]]:
        read = NormalizedTexts(list(map(fold_text, documents)))
        found: list[dict[int, Match]] = [{} for _ in documents]
        hashes, owners = read.word_ngrams(WORD_NGRAM_SIZE)
        places, numbers = self._rare.find(hashes)
        for document, candidates in _group(owners[places], numbers):
            first, last = np.searchsorted(owners, [document, document + 1])
            found[document] |= self._check_contained(candidates, [np.sort(hashes[first:last])])
        longer = np.flatnonzero(read.ends - read.starts >= CHARACTER_NGRAM_SIZE)
        signatures = read.signatures(longer, self._factors)
        places, numbers = self._near.find(self._band_keys(signatures).ravel())
        places //= self._bands
        estimates = (signatures[places] == self._signatures[numbers]).mean(axis=1)
        near = self._rules.near
        likely = estimates >= near - TOLERANCE * np.sqrt(near * (1 - near) / len(self._factors)) - 1e-9
        for document, candidates in _group(longer[places[likely]], numbers[likely]):
            found[document] |= self._check_near(candidates, hash_character_ngrams(read.string(document)))
        for document, candidates in _group(*self._whole.find(read.whole_hashes())):
            if (number := self._numbers.get(read.string(document))) in candidates:
                found[document][number] = Match("exact", 1.0)
        return found

    def _find_in_pieces(self, document: str) -> dict[int, Match]:
        found = [self._rare.find(hashes)[1] for hashes in _ngrams_of_pieces(document)]
        candidates = np.unique(np.concatenate(found)).tolist()
        return self._check_contained(candidates, map(np.sort, _ngrams_of_pieces(document))) if candidates else {}

    def _check_contained(self, candidates: Sequence[int], pieces: Iterable[np.ndarray]) -> dict[int, Match]:
        """Return the texts that a document contains, given its n-grams in pieces, each sorted."""
        ngrams = {number: self._ngrams[self._limits[number] : self._limits[number + 1]] for number in candidates}
        has = {number: np.zeros(len(own), dtype=bool) for number, own in ngrams.items()}
        for piece in filter(len, pieces):
            for number, own in ngrams.items():
                has[number] |= piece[np.minimum(np.searchsorted(piece, own), len(piece) - 1)] == own
        shares = {number: float(own.mean()) for number, own in has.items()}
        least = self._rules.contained - 1e-9
        return {number: Match("contained", share) for number, share in shares.items() if share >= least}

    def _check_near(self, candidates: Sequence[int], ngrams: np.ndarray) -> dict[int, Match]:
        """Return the near duplicates of a document, given its character n-grams."""
        found: dict[int, Match] = {}
        for number in candidates:
            other = hash_character_ngrams(self._joined[number])
            common = len(np.intersect1d(ngrams, other, assume_unique=True))
            similarity = common / (len(ngrams) + len(other) - common)
            if similarity >= self._rules.near:
                found[number] = Match("near", similarity)
        return found


def _join(parts: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=kind), *parts])


def _group(documents: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield each document of some pairs with its numbers."""
    found: dict[int, set[int]] = {}
    for document, number in zip(documents.tolist(), numbers.tolist(), strict=True):
        found.setdefault(document, set()).add(number)
    return ((document, sorted(own)) for document, own in found.items())


def batch_texts(documents: Iterable[tuple[str, T]]) -> Iterator[list[tuple[str, T]]]:
    """Yield documents, each with another object, in batches; one that is read in pieces is alone."""
    batch: list[tuple[str, T]] = []
    size = 0
    for document in documents:
        own = len(document[0])
        if batch and (size >= BATCH_CHARACTERS or own > MAX_PIECE_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += own + 1
        if own > MAX_PIECE_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def iterate_pieces(document: str) -> Iterator[NormalizedTexts]:
    """Yield the words of a long document in pieces, of which each n-gram of words is in one."""
    start = 0
    carried = ""
    while True:
        end = start + MAX_PIECE_CHARACTERS
        gap = _WORD_BREAK_PATTERN.search(document, end, end + MAX_WORD_CHARACTERS)
        end = gap.start() if gap else end + MAX_WORD_CHARACTERS
        read = NormalizedTexts([f"{carried} {fold_text(document[start:end])}"])
        yield read
        if end >= len(document):
            return
        start, carried = end, " ".join(next(read.strings()).split(" ")[-(WORD_NGRAM_SIZE - 1) :])


def _ngrams_of_pieces(document: str) -> Iterator[np.ndarray]:
    return (piece.word_ngrams(WORD_NGRAM_SIZE)[0] for piece in iterate_pieces(document))


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


class ContaminationSearch:
    """A search of one or several corpora for groups of texts.

    Attributes:
        index: The index of the texts.
        members: The indices of the texts of each group.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], rules: MatchRules | None = None) -> None:
        """Index the texts.

        Args:
            groups: The texts to search for, by the name of their group, such as the split of a task.
            rules: Thresholds of a match.
        """
        self.index = TextIndex([text for texts in groups.values() for text in texts], rules or MatchRules())
        self.members = {
            name: {number for number in self.index.members(texts) if number is not None}
            for name, texts in groups.items()
        }
        self._best: dict[int, str] = {}

    def run(
        self,
        documents: Iterable[tuple[str, T]],
        note: Callable[[str, T, Mapping[int, Match]], None] = lambda *_: None,
        *,
        progress: bool = False,
    ) -> ContaminationReport:
        """Search the documents of a corpus, in one pass.

        Memory holds the index of the texts and a digest of each flagged document, not the corpus.

        Args:
            documents: The documents, each with another object.
            note: Called with each document in turn, its object and its matches.
            progress: Whether to show a progress bar.
        """
        found = ContaminationReport()
        best: dict[int, str] = {}
        with Progress("Searching for contamination", None, unit="documents", enabled=progress) as bar:
            for document, other, hits in self.index.search(documents):
                found.documents += 1
                bar.update(found.documents)
                if hits:
                    found.flagged += 1
                    found.digests.append(hash_document(document.encode("utf-8", "surrogatepass")).hex())
                for number, match in hits.items():
                    if number not in best and len(found.examples) < MAX_EXAMPLES:
                        group = next(name for name, numbers in self.members.items() if number in numbers)
                        shown = {
                            "text": self.index.texts[number][:MAX_EXAMPLE_CHARACTERS],
                            "document": document[:MAX_EXAMPLE_CHARACTERS],
                        }
                        found.examples.append({"group": group, "kind": match.kind, **shown})
                    best[number] = _first_kind(match.kind, best.get(number))
                note(document, other, hits)
        found.groups = self._count(best)
        for number, kind in best.items():
            self._best[number] = _first_kind(kind, self._best.get(number))
        return found

    def merge(self, reports: Sequence[ContaminationReport]) -> ContaminationReport:
        """Return one report of all corpora that were searched."""
        examples = [example for report in reports for example in report.examples][:MAX_EXAMPLES]
        digests = [digest for report in reports for digest in report.digests]
        documents, flagged = (sum(getattr(one, name) for one in reports) for name in ("documents", "flagged"))
        return ContaminationReport(documents, flagged, self._count(self._best), examples, digests)

    def _count(self, best: Mapping[int, str]) -> dict[str, dict[str, int]]:
        groups = {}
        for name, numbers in self.members.items():
            kinds = [best[number] for number in numbers if number in best]
            short = sum(number in self.index.short for number in numbers)
            counts = {kind: kinds.count(kind) for kind in MATCH_KINDS}
            groups[name] = {"texts": len(numbers), "short": short, "found": len(kinds), **counts}
        return groups


def _first_kind(kind: str, other: str | None) -> str:
    return min(kind, other or kind, key=MATCH_KINDS.index)


def find_contamination(
    documents: Iterable[str],
    groups: Mapping[str, Sequence[str]],
    rules: MatchRules | None = None,
    *,
    progress: bool = False,
) -> ContaminationReport:
    """Search the documents of a corpus for evaluation texts; see :class:`ContaminationSearch`."""
    return ContaminationSearch(groups, rules).run(((text, None) for text in documents), progress=progress)
