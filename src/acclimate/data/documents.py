"""The corpus: documents read lazily, without exact duplicates, with bad records counted and a held-out split."""

from __future__ import annotations

import copy
import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.base.options import values
from acclimate.data.csv_reader import (
    DEFAULT_COLUMN,
    WHOLE_ROW,
    infer_column,
    join_cells,
    missing_column_error,
    split_columns,
    write_row,
)
from acclimate.data.editing import TextEdits, count_placeholders, describe_masked
from acclimate.data.opening import NOT_UTF8, explain_surrogates
from acclimate.data.readers import LostRest, TxtLayout, list_unused
from acclimate.data.reading import DEFAULT_TEXT, TextOptions
from acclimate.data.sources import SPEC_KEYS, FileSource, ListSource, Source, is_source, resolve_sources

MAX_REPORTED_PROBLEMS, MAX_LISTED_FILES = 20, 10
_VERSION = 1  # increment when the same files give different documents


def hash_document(data: bytes) -> bytes:
    """Return the digest that identifies a document, 12 bytes.

    Args:
        data: The document in UTF-8.
    """
    return blake2b(data, digest_size=12).digest()


@dataclass
class CorpusReport:
    """Statistics of one pass over a corpus.

    Attributes:
        sources: Names of the files and datasets.
        documents: Number of documents yielded.
        duplicates: Documents left out because an equal one came before.
        empty: Records without text: blank lines, empty or null fields.
        broken: Records that could not be read.
        unused: Keys that are not used, with the number of records that have each.
        elsewhere: Documents in the other part of a split.
        leaked: Documents left out because they contain evaluation texts.
        cut_off: Files whose rest could not be read, as ``file:line: reason``.
        masked: Numbers of placeholders of personal data by name; None if none are masked.
        problems: The first 20 broken records as ``file:line: reason``.
        complete: Whether the pass reached the end.
    """

    sources: list[str] = field(default_factory=list)
    documents: int = 0
    duplicates: int = 0
    empty: int = 0
    broken: int = 0
    elsewhere: int = 0
    leaked: int = 0
    unused: dict[str, int] = field(default_factory=dict)
    cut_off: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    complete: bool = False
    masked: dict[str, int] | None = None

    def summary(self, record: str = "document") -> str:
        """Return the counts as one line, without those that are zero; ``record`` is what a document is called."""
        parts = [format_count(self.documents, record), f"from {format_count(len(self.sources), 'source')}"]
        if self.elsewhere:
            parts.append(f"(of {self.documents + self.elsewhere}, the others are in the other part of the split)")
        dropped = [
            text
            for number, text in (
                (self.duplicates, format_count(self.duplicates, "duplicate")),
                (self.leaked, f"{self.leaked:,} with evaluation texts"),
                (self.empty, f"{self.empty:,} empty"),
                (self.broken, f"{self.broken:,} broken"),
            )
            if number
        ]
        line = " ".join(parts) + (f"; left out: {', '.join(dropped)}" if dropped else "")
        line += "" if self.masked is None else f"; personal data masked: {describe_masked(self.masked)}"
        if self.unused:
            line += f"; not used: {list_unused(self.unused)}"
        if self.cut_off:
            line += f"; not read to the end: {self.list_cut_off()}"
            return line if self.problems[:1] == self.cut_off[:1] else f"{line}; first problem: {self.problems[0]}"
        return line + (f"; first problem: {self.problems[0]}" if self.problems else "")

    def list_cut_off(self) -> str:
        """Return the files whose rest could not be read, for a message."""
        more = [f"{len(self.cut_off) - MAX_LISTED_FILES} more"] if len(self.cut_off) > MAX_LISTED_FILES else []
        return ", ".join([*self.cut_off[:MAX_LISTED_FILES], *more])

    def leave_out(self, where: str, problem: str) -> None:
        """Count a record that cannot be used; a :class:`LostRest` is also listed as a file."""
        self.broken += 1
        if isinstance(problem, LostRest):
            self.cut_off.append(f"{where}: {problem}")
        if len(self.problems) < MAX_REPORTED_PROBLEMS:
            self.problems.append(f"{where}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self)


class Corpus:
    """Documents from files, folders, globs, Hugging Face datasets or memory.

    Iteration yields the documents as strings, unchanged. Each iteration reads the sources again, lazily: memory does
    not grow with the text, but by about 100 bytes per document if duplicates are dropped.

    Attributes:
        sources: The files, datasets and texts in memory.
        report: Statistics of the latest iteration so far.
    """

    def __init__(
        self,
        sources: str | Path | Mapping[str, str] | Sequence[str | Path | Mapping[str, str]],
        *,
        text_column: str = DEFAULT_COLUMN,
        dedup: bool = True,
        limit: int | None = None,
        txt: TxtLayout = "auto",
        encoding: str | None = None,
        clean: Sequence[str] = (),
        mask_personal: bool = False,
    ) -> None:
        """Resolve the sources; nothing is read yet.

        Args:
            sources: One or several of: a file, a folder, a glob, a Hugging Face dataset (``hf:NAME:CONFIG:SPLIT``).
                The text column of a source may follow after a colon: ``reviews.csv:body``; or a source is a mapping
                with the keys ``path``, ``text_column`` and ``encoding``.
            text_column: The key or column that holds the text in tables and JSON. If there is no column ``text``, the
                only one with a usual name, such as ``review`` or ``content``, is read, and a line reports that. Of
                several, as in ``"subject,body"``, the texts are joined. With ``"*"`` a document is a whole row, as
                JSON.
            dedup: Whether to yield only the first of equal documents.
            limit: Maximum number of (distinct) documents, before any split.
            txt: Layout of ``.txt`` files: one document per ``"line"``, one per ``"block"`` between blank lines, or
                ``"auto"``, which decides by the first 1000 lines of each file.
            encoding: Encoding of files of text that are not UTF-8, such as ``"cp1252"``.
            clean: What is removed from each text, see :class:`acclimate.data.editing.TextEdits`.
            mask_personal: Whether personal data are replaced by placeholders.

        Raises:
            UserError: If a source does not exist or has an unknown format, or an option is invalid.
        """
        text_column = text_column.strip()
        edits = TextEdits(clean, mask_personal)
        self._configure(resolve_sources(sources, text_column, encoding), text_column, dedup, limit, txt, edits)

    @classmethod
    def of(
        cls, texts: Iterable[str], *, dedup: bool = True, limit: int | None = None, edits: TextEdits | None = None
    ) -> Corpus:
        """Make a corpus from texts in memory.

        Raises:
            UserError: If ``limit`` is less than 1.
        """
        corpus = cls.__new__(cls)
        corpus._configure([ListSource(tuple(texts))], "text", dedup, limit, "auto", edits or TextEdits())
        return corpus

    def _configure(
        self,
        sources: list[Source],
        text_column: str,
        dedup: bool,
        limit: int | None,
        txt: TxtLayout,
        edits: TextEdits,
    ) -> None:
        if limit is not None and limit < 1:
            raise UserError(f"The limit of a corpus must be at least 1 document, not {limit}.")
        if txt not in get_args(TxtLayout):
            raise unknown_name_error("layout of .txt files", txt, get_args(TxtLayout))
        self.sources = sources
        self._text_column = text_column
        self._dedup = dedup
        self._limit = limit
        self._txt: TxtLayout = txt
        self._edits = edits
        self._parts: tuple[tuple[float, int, bool], ...] = ()
        self._excluded: frozenset[bytes] = frozenset()
        self._fingerprint: str | None = None
        # Keyed by the id of a source, which lives as long as the corpus; shared by the parts of a split.
        self._source_fingerprints: dict[int, str] = {}
        self.report = CorpusReport([source.name for source in sources])

    def __repr__(self) -> str:
        names = ", ".join(self.report.sources[:3]) + (", ..." if len(self.sources) > 3 else "")
        return f"{type(self).__name__}({names})"

    @property
    def fingerprint(self) -> str:
        """A hash of the content and the settings: equal if the same documents are yielded in the same order.

        Files of up to 256 MiB are hashed whole; larger ones by size, modification time and both ends; Hugging Face
        datasets by name. The hash is computed once.
        """
        if self._fingerprint is None:
            column = self._text_column if any(not isinstance(source, ListSource) for source in self.sources) else ""
            settings: tuple[Any, ...] = (_VERSION, column, self._dedup, self._limit, self._txt, self._parts)
            settings += (self._edits.identity(),) if self._edits else ()
            if self._excluded:
                settings += (sorted(self._excluded),)
            if self._dedup and (repeats := self._selections()):
                settings += (sorted(repeats),)
            state = blake2b(repr(settings).encode(), digest_size=16)
            for source in self.sources:
                state.update(f"\n{self._fingerprint_of(source)}".encode())
            self._fingerprint = state.hexdigest()
        return self._fingerprint

    def contents(self) -> list[dict[str, Any]]:
        """Return ``name``, ``bytes`` (None if unknown) and ``hash`` of each source; see :attr:`fingerprint`."""
        return [
            {
                "name": source.name,
                "bytes": getattr(source, "size", None),
                "hash": self._fingerprint_of(source).split()[-1],
            }
            for source in self.sources
        ]

    def _fingerprint_of(self, source: Source) -> str:
        if id(source) not in self._source_fingerprints:
            self._source_fingerprints[id(source)] = source.fingerprint()
        return self._source_fingerprints[id(source)]

    def split(self, heldout: float, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Split the documents at random into a training part and a held-out part.

        The part of a document depends only on its text and the seed, so equal documents are in the same part. A part
        can be split again.

        Args:
            heldout: Expected share of held-out documents, between 0 and 1.
            seed: Random seed.

        Returns:
            The training part and the held-out part. Each reads the sources itself when iterated.

        Raises:
            UserError: If the share is out of range.
        """
        if not 0 < heldout < 1:
            raise UserError(f"The held-out share must be above 0 and below 1, not {heldout}.")
        return self._part(float(heldout), seed, False), self._part(float(heldout), seed, True)

    def _part(self, heldout: float, seed: int, held: bool) -> Corpus:
        part = copy.copy(self)
        part._parts = (*self._parts, (heldout, seed, held))
        part._fingerprint = None
        part.report = CorpusReport([source.name for source in self.sources])
        return part

    def without(self, digests: Iterable[str]) -> Corpus:
        """Return a corpus without some documents; it has a different fingerprint.

        Args:
            digests: Digests of the documents, from :class:`acclimate.data.contamination.ContaminationReport`.
        """
        smaller = copy.copy(self)
        smaller._excluded = self._excluded | {bytes.fromhex(digest) for digest in digests}
        smaller._fingerprint = None
        smaller.report = CorpusReport([source.name for source in self.sources])
        return smaller

    def _selections(self) -> set[int]:
        """Return the indices of the files that a selection wrote: what it repeats on purpose is no duplicate."""
        files = ((number, one) for number, one in enumerate(self.sources) if isinstance(one, FileSource))
        return {number for number, file in files if file.account.is_file()}

    def _is_in_part(self, text: bytes) -> bool:
        for depth, (heldout, seed, held) in enumerate(self._parts):
            # The depth makes the draws of a second split independent of the first split's draws with the same seed.
            digest = blake2b(text, digest_size=8, salt=f"{depth}".encode(), key=f"{seed}".encode()).digest()
            if (int.from_bytes(digest, "big") < heldout * 2**64) != held:
                return False
        return True

    def __iter__(self) -> Iterator[str]:
        """Yield the documents; see :meth:`with_sources`."""
        return (text for text, _ in self.with_sources())

    def with_sources(self) -> Iterator[tuple[str, int]]:
        """Yield the documents from the start, each with the index of its source in ``report.sources``.

        Raises:
            UserError: If a file cannot be opened or lacks the text column, or if no document is usable.
        """
        self.report = report = CorpusReport([source.name for source in self.sources])
        report.masked = {} if self._edits.mask_personal else None
        seen: set[bytes] = set()
        repeats = self._selections()
        for text, data, source in self._iterate_usable_texts(report):
            digest = hash_document(data) if self._dedup or self._excluded else b""
            if self._dedup and source not in repeats:
                if digest in seen:
                    report.duplicates += 1
                    continue
                seen.add(digest)
            if digest in self._excluded:
                report.leaked += 1
            elif self._is_in_part(data):
                report.documents += 1
                if report.masked is not None:
                    count_placeholders(text, report.masked)
                yield text, source
            else:
                report.elsewhere += 1
            # Contaminated documents count, or the limit would let in documents that were never searched.
            if report.documents + report.elsewhere + report.leaked == self._limit:
                break
        report.complete = True
        if not report.documents:
            raise self._no_documents_error(report)

    def _iterate_usable_texts(self, report: CorpusReport) -> Iterator[tuple[str, bytes, int]]:
        """Yield each text with its UTF-8 bytes and its source; count the empty and broken records."""
        for number, source in enumerate(self.sources):
            advice = ""
            for line, text, problem in source.records(self._text_column, self._txt):
                if self._edits and not problem:
                    text = self._edits(text)
                if not problem:
                    try:
                        data = text.encode("utf-8")
                    except UnicodeEncodeError:
                        problem = explain_surrogates(text)
                if problem.startswith(NOT_UTF8) and not advice:
                    advice = f"; {source.advise_encoding()}" if isinstance(source, FileSource) else " "
                    problem = type(problem)(problem + advice.rstrip())
                if problem:
                    report.leave_out(f"{source.name}:{line}", problem)
                elif not text or text.isspace():
                    report.empty += 1
                else:
                    yield text, data, number

    def _no_documents_error(self, report: CorpusReport) -> UserError:
        if report.elsewhere:
            share, _, held = self._parts[-1]
            part = "held-out" if held else "training"
            return UserError(
                f"The {part} part of the corpus is empty: a held-out share of {share} of "
                f"{format_count(report.elsewhere, 'document')} leaves none. Give more documents or another share."
            )
        if report.leaked:
            return UserError(
                f"No document of the corpus is left: {format_count(report.leaked, 'document')} with evaluation texts "
                "were left out. Give other text, or keep the contaminated documents and report them."
            )
        names = ", ".join(f"'{name}'" for name in report.sources[:3])
        more = f" and {len(report.sources) - 3} more" if len(report.sources) > 3 else ""
        first = f" First problem: {report.problems[0]}." if report.problems else ""
        counts = f"{report.broken:,} broken, {report.empty:,} empty.{first}"
        found = f"{format_count(len(report.sources), 'source')} ({names}{more})"
        return UserError(f"The corpus has no usable document. Checked {found}: {counts}")


def count_units(items: int, units: int | None, name: str | None) -> str:
    """Return "246 items", or "50 passages (246 items)" where these are what statistics resample."""
    shown = format_count(items, "item")
    return shown if units is None else f"{format_count(units, name or 'group')} ({shown})"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``"1 text"`` or ``"1,200 texts"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table_rows(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a ``Dataset``, a table of pyarrow or a data frame of polars or pandas; None for others.

    An ``IterableDataset`` is one of the others: it is iterated, since its own conversion fails on missing values.
    """
    if hasattr(value, "to_list") and hasattr(value, "column_names") and hasattr(value, "__len__"):  # Dataset
        return value.to_list()
    if hasattr(value, "to_pylist"):  # pyarrow
        return value.to_pylist()
    if hasattr(value, "to_dicts"):  # polars
        return value.to_dicts()
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # pandas
        return value.astype(object).where(value.notna(), None).to_dict("records")
    return None


def as_corpus(text: Any, reading: TextOptions = DEFAULT_TEXT, *, dedup: bool = True) -> Corpus:
    """Return a corpus: the given one, one of files and datasets, or one of texts in memory.

    Args:
        text: A corpus; one or several files, folders, globs or ``hf:NAME``; or texts in memory, see
            :func:`texts_in_memory`.
        reading: The column of the text in tables and JSON, the encoding of files, and edits of the text. They do not
            apply to a corpus.
        dedup: Whether equal documents are yielded once; it does not apply to a corpus.

    Raises:
        UserError: If a source cannot be read or has no such column.
    """
    if isinstance(text, Corpus):
        return text
    text = list(text) if isinstance(text, Iterator) else text
    if not isinstance(text, str | Path) and (texts := texts_in_memory(text, reading.text_column)) is not None:
        return Corpus.of(texts, dedup=dedup, edits=reading.edits)
    return Corpus(text, dedup=dedup, **values(reading, TextOptions))


def with_usual_column(text: Any, reading: TextOptions) -> Corpus:
    """Open an auxiliary text with the domain text's column if the text has it, else with the default column.

    Args:
        text: The text, as :func:`as_corpus` takes it.
        reading: How the domain text is read.
    """
    corpus, text_column = as_corpus(text, reading), reading.text_column
    if text_column != DEFAULT_COLUMN:
        try:
            next(iter(corpus), None)
        except UserError:
            with suppress(UserError):  # reading the corpus will say what is wrong with it
                usual = as_corpus(text, replace(reading, text_column=DEFAULT_COLUMN))
                next(iter(usual), None)
                warn_once(f"{usual!r} has no column '{text_column}', so its usual text column is read.")
                return usual
    return corpus


def texts_in_memory(value: Any, text_column: str) -> list[Any] | None:
    """Return the texts of objects in memory; None if the value names files or datasets.

    Args:
        value: A ``Dataset``, ``IterableDataset``, data frame or table of pyarrow; rows as dictionaries; or texts. A
            list of strings holds texts if one has a blank or a line end, and none is or looks like a file or dataset.
            A tuple of strings always names sources.
        text_column: The column of the text, see :func:`acclimate.data.csv_reader.infer_column`.

    Raises:
        UserError: If there is no such column, or the value is several datasets by split.
    """
    if isinstance(value, bytes) or (isinstance(value, tuple) and all(isinstance(one, str) for one in value)):
        return None
    if isinstance(value, Mapping):
        if value.keys() <= set(SPEC_KEYS):
            return None
        raise UserError(
            f"The text is given as a mapping with the keys {', '.join(map(str, value))}; give one of its values, such "
            "as the split 'train' of a DatasetDict."
        )
    where = f"the {type(value).__name__} in memory"
    rows = table_rows(value)
    if rows is None and not isinstance(value, Iterable):
        return None
    items: list[Any] = [None if item != item else item for item in value] if rows is None else []  # NaN is missing
    if items and all(isinstance(item, Mapping) and "path" not in item for item in items):  # also an IterableDataset
        rows = items
    if rows is not None:
        names = dict.fromkeys(name for row in rows for name in row)
        if not rows:
            return []
        if (column := infer_column(where, text_column, names)) is None:
            raise missing_column_error(where, text_column, names)
        parts = split_columns(column, list(map(str, names)))
        return [write_row(row) if column == WHOLE_ROW else join_cells([*map(row.get, parts)]) for row in rows]
    _check_items(items)
    strings = [item for item in items if item is not None]
    is_text = all(isinstance(item, str) for item in strings) and any(set(item) & set(" \n") for item in strings)
    # A text of punctuation alone, such as "." or "/", may be an existing path, also before a colon as in "/:S".
    worded = [one for one in strings if any(map(str.isalnum, str(one).rpartition(":")[0] or str(one)))] or strings
    return items if is_text and not any(map(is_source, worded)) else None


def _check_items(items: Sequence[Any]) -> None:
    """Check that a list in which most items are texts, and none is a source, has nothing else."""
    texts = [one for one in items if isinstance(one, str)]
    number, other = next(((n, one) for n, one in enumerate(items, 1) if not isinstance(one, str | None)), (0, None))
    if other is None or isinstance(other, Path | Mapping) or 2 * len(texts) <= len(items):
        return
    if any(set(one) & set(" \n") for one in texts) and not any(map(is_source, texts)):
        raise UserError(f"Item {number} of the list of texts is {other!r:.40}; each must be a text.")


def subsample_documents(corpus: Iterable[str], count: int) -> list[str]:
    """Return a pseudo-random sample of ``count`` documents that does not depend on their order.

    The documents with the smallest hashes are taken, so equal corpora give the same sample. Memory holds only it.
    """
    ranked = (
        (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), text) for text in corpus
    )
    return [text for _, text in heapq.nsmallest(count, ranked)]
