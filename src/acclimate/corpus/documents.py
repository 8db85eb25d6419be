"""The corpus: documents read lazily, exact duplicates dropped, bad lines counted, held-out documents kept apart.

Some documents of many, the same ones whatever their order.
"""

from __future__ import annotations

import copy
import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

from acclimate.corpus.contamination import hash_document
from acclimate.corpus.readers import TxtLayout
from acclimate.corpus.sources import ListSource, Source, resolve_sources
from acclimate.errors import UserError, unknown_name_error

MAX_REPORTED_PROBLEMS = 20
_VERSION = 1  # raise when the same files come to give other documents


@dataclass
class CorpusReport:
    """What a reading of a corpus found.

    Attributes:
        sources: The files and data sets, by name.
        documents: Documents given.
        duplicates: Documents dropped because the same text came before.
        empty: Records without text: blank lines, empty or null fields.
        broken: Records that could not be read.
        elsewhere: Documents that belong to the other part of a split.
        leaked: Documents that were left out because a task is judged on a text of theirs.
        problems: The first 20 broken records as ``file:line: reason``.
        complete: Whether the reading came to its end.
    """

    sources: list[str] = field(default_factory=list)
    documents: int = 0
    duplicates: int = 0
    empty: int = 0
    broken: int = 0
    elsewhere: int = 0
    leaked: int = 0
    problems: list[str] = field(default_factory=list)
    complete: bool = False

    def summary(self) -> str:
        """Say the counts in one line; what did not occur is left out."""
        parts = [_format_count(self.documents, "document"), f"from {_format_count(len(self.sources), 'source')}"]
        if self.elsewhere:
            parts.append(f"(of {self.documents + self.elsewhere}, the rest in the other part of the split)")
        dropped = [
            text
            for number, text in (
                (self.duplicates, _format_count(self.duplicates, "duplicate")),
                (self.leaked, f"{self.leaked:,} with texts that a task is judged on"),
                (self.empty, f"{self.empty:,} empty"),
                (self.broken, f"{self.broken:,} broken"),
            )
            if number
        ]
        line = " ".join(parts) + (f"; left out: {', '.join(dropped)}" if dropped else "")
        return line + (f"; first problem: {self.problems[0]}" if self.problems else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self)


class Corpus:
    """Documents from files, folders, globs, data sets of the hub or memory.

    Iterating gives the documents as strings, unchanged. It reads lazily: memory does not grow with the text, only by
    about 100 bytes for each document when duplicates are dropped. Every iteration reads anew and leaves its counts in
    ``report``.

    Attributes:
        report: What the latest iteration found so far; ``report.complete`` tells whether it came to its end.
    """

    def __init__(
        self,
        sources: str | Path | Sequence[str | Path],
        *,
        text_column: str = "text",
        dedup: bool = True,
        limit: int | None = None,
        txt: TxtLayout = "auto",
    ) -> None:
        """Name the sources; nothing is read yet, but a file that does not exist is found out here.

        Args:
            sources: One or several of: a file, a folder, a glob, a data set of the hub (``hf:NAME:CONFIG:SPLIT``).
            text_column: The key or column with the text, in all formats but ``.txt``.
            dedup: Whether to give a text that comes several times only once.
            limit: Read no more than this many (distinct) documents, before any split.
            txt: ``"line"`` reads a document from each line of a ``.txt`` file, ``"block"`` from each block between
                blank lines; ``"auto"`` decides by the first 1000 lines of each file.

        Raises:
            UserError: If a source does not exist or has an unknown format, or an option is not valid.
        """
        self._configure(resolve_sources(sources), text_column, dedup, limit, txt)

    @classmethod
    def of(cls, texts: Iterable[str], *, dedup: bool = True, limit: int | None = None) -> Corpus:
        """Make a corpus of texts in memory."""
        corpus = cls.__new__(cls)
        corpus._configure([ListSource(tuple(texts))], "text", dedup, limit, "auto")
        return corpus

    def _configure(
        self, sources: list[Source], text_column: str, dedup: bool, limit: int | None, txt: TxtLayout
    ) -> None:
        if limit is not None and limit < 1:
            raise UserError(f"The limit of a corpus is {limit}: it must be at least 1 document.")
        if txt not in get_args(TxtLayout):
            raise unknown_name_error("layout of .txt files", txt, get_args(TxtLayout))
        self._sources = sources
        self._text_column = text_column
        self._dedup = dedup
        self._limit = limit
        self._txt: TxtLayout = txt
        self._parts: tuple[tuple[float, int, bool], ...] = ()
        self._excluded: frozenset[bytes] = frozenset()
        self._fingerprint: str | None = None
        self._fingerprints: dict[
            int, str
        ] = {}  # by identity: they live as long as the corpus, and its parts share them
        self.report = CorpusReport([source.name for source in sources])

    def __repr__(self) -> str:
        names = ", ".join(self.report.sources[:3]) + (", ..." if len(self._sources) > 3 else "")
        return f"{type(self).__name__}({names})"

    @property
    def fingerprint(self) -> str:
        """A hash of the content and the settings: the same exactly when the same documents come in the same order.

        Files are known by their content up to 256 MiB and beyond that by size, time of change and both ends; data sets
        of the hub by name. The hash is made at the first call and kept.
        """
        if self._fingerprint is None:
            column = self._text_column if any(not isinstance(source, ListSource) for source in self._sources) else ""
            settings: tuple[Any, ...] = (_VERSION, column, self._dedup, self._limit, self._txt, self._parts)
            if self._excluded:
                settings += (sorted(self._excluded),)
            state = blake2b(repr(settings).encode(), digest_size=16)
            for source in self._sources:
                state.update(f"\n{self._fingerprint_of(source)}".encode())
            self._fingerprint = state.hexdigest()
        return self._fingerprint

    def contents(self) -> list[dict[str, Any]]:
        """Return ``name``, ``bytes`` (None where nobody knows) and ``hash`` of each source, as :attr:`fingerprint`."""
        return [
            {
                "name": source.name,
                "bytes": getattr(source, "size", None),
                "hash": self._fingerprint_of(source).split()[-1],
            }
            for source in self._sources
        ]

    def _fingerprint_of(self, source: Source) -> str:
        """Return the fingerprint of a source, which is made once."""
        if id(source) not in self._fingerprints:
            self._fingerprints[id(source)] = source.fingerprint()
        return self._fingerprints[id(source)]

    def split(self, heldout: float, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Split the documents in two; a document is never cut, and equal documents fall on the same side.

        Where a document falls depends on its text and the seed alone, not on its place or on the other documents.
        A part can be split again.

        Args:
            heldout: The expected share of held-out documents, above 0 and below 1.
            seed: Other seeds give other splits.

        Returns:
            The training part and the held-out part. Each reads the sources itself when iterated.

        Raises:
            UserError: If the share is out of range.
        """
        if not 0 < heldout < 1:
            raise UserError(f"The held-out share is {heldout}: it must be above 0 and below 1.")
        return self._part(float(heldout), seed, False), self._part(float(heldout), seed, True)

    def _part(self, heldout: float, seed: int, held: bool) -> Corpus:
        part = copy.copy(self)
        part._parts = (*self._parts, (heldout, seed, held))
        part._fingerprint = None
        part.report = CorpusReport([source.name for source in self._sources])
        return part

    def without(self, digests: Iterable[str]) -> Corpus:
        """Return the corpus without some documents: another corpus, with another fingerprint.

        Args:
            digests: As :class:`acclimate.corpus.contamination.ContaminationReport` has them.
        """
        smaller = copy.copy(self)
        smaller._excluded = self._excluded | {bytes.fromhex(digest) for digest in digests}
        smaller._fingerprint = None
        smaller.report = CorpusReport([source.name for source in self._sources])
        return smaller

    def _is_in_part(self, text: bytes) -> bool:
        for depth, (heldout, seed, held) in enumerate(self._parts):
            # With the depth, a part that is split again with the same seed draws anew.
            digest = blake2b(text, digest_size=8, salt=f"{depth}".encode(), key=f"{seed}".encode()).digest()
            if (int.from_bytes(digest, "big") < heldout * 2**64) != held:
                return False
        return True

    def __iter__(self) -> Iterator[str]:
        """Read the documents from the start.

        Raises:
            UserError: If a file cannot be opened, lacks the text column, or no document is usable at the end.
        """
        self.report = report = CorpusReport([source.name for source in self._sources])
        seen: set[bytes] = set()
        for text, data in self._iterate_usable_texts(report):
            digest = hash_document(data) if self._dedup or self._excluded else b""
            if self._dedup:
                if digest in seen:
                    report.duplicates += 1
                    continue
                seen.add(digest)
            if digest in self._excluded:
                report.leaked += 1
            elif self._is_in_part(data):
                report.documents += 1
                yield text
            else:
                report.elsewhere += 1
            # What was left out counts, or a limit would reach documents that nobody looked at.
            if report.documents + report.elsewhere + report.leaked == self._limit:
                break
        report.complete = True
        if not report.documents:
            raise self._nothing(report)

    def _iterate_usable_texts(self, report: CorpusReport) -> Iterator[tuple[str, bytes]]:
        """Give each text with its UTF-8 bytes; count what is empty or broken."""
        for source in self._sources:
            for line, text, problem in source.records(self._text_column, self._txt):
                if not problem:
                    try:
                        data = text.encode("utf-8")
                    except UnicodeEncodeError:
                        problem = "not UTF-8, or half of a surrogate pair"
                if problem:
                    report.broken += 1
                    if len(report.problems) < MAX_REPORTED_PROBLEMS:
                        report.problems.append(f"{source.name}:{line}: {problem}")
                elif not text or text.isspace():
                    report.empty += 1
                else:
                    yield text, data

    def _nothing(self, report: CorpusReport) -> UserError:
        if report.elsewhere:
            share, _, held = self._parts[-1]
            part = "held-out" if held else "training"
            return UserError(
                f"The {part} part of the corpus is empty: a held-out share of {share} of "
                f"{_format_count(report.elsewhere, 'document')} leaves nothing here. Give more documents or "
                "another share."
            )
        if report.leaked:
            return UserError(
                f"Nothing of the corpus is left: {_format_count(report.leaked, 'document')} with texts that a task "
                "is evaluated on were left out. Give other text, or leave the leakage in and report it."
            )
        names = ", ".join(f"'{name}'" for name in report.sources[:3])
        more = f" and {len(report.sources) - 3} more" if len(report.sources) > 3 else ""
        first = f" First problem: {report.problems[0]}." if report.problems else ""
        return UserError(
            f"The corpus has no usable document. Read {_format_count(len(report.sources), 'source')} ({names}{more}): "
            f"{report.broken:,} broken, {report.empty:,} empty.{first}"
        )


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def subsample_documents(corpus: Iterable[str], count: int) -> list[str]:
    """Choose ``count`` documents as if by chance, whatever their order; memory holds no more than these.

    The choice depends on the texts alone: documents with the smallest hashes are taken, so the first file of
    several has no advantage and the same text is always judged.
    """
    ranked = (
        (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), text) for text in corpus
    )
    return [text for _, text in heapq.nsmallest(count, ranked)]
