"""Rows of token ids: one flat array with offsets, in memory or memory-mapped."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast, overload

import numpy as np

from acclimate.base.files import read_json, write_json
from acclimate.models.kinds import ModelKind

_TOKENS, _ENDS, _DOCUMENTS, _META = "tokens.bin", "ends.bin", "documents.bin", "rows.json"


class Rows(Sequence[np.ndarray]):
    """A sequence of rows of token ids, of which a subclass has a length and single rows."""

    @abstractmethod
    def row(self, index: int) -> np.ndarray:
        """Return the row with an index that is not negative: int32 of shape (length,)."""

    @abstractmethod
    def lengths_of(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers of tokens of some rows, without reading these: int64 of shape (indices,)."""

    def source(self, index: int) -> int | None:
        """Return the index of the source of a row; None if all have one source."""
        return None

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        """Return a row; for a slice, a list of rows."""
        if isinstance(index, slice):
            return [self.row(i) for i in range(*index.indices(len(self)))]
        return self.row(range(len(self))[index])


class TokenDataset(Rows):
    """Rows of token ids, special tokens included.

    Attributes:
        document: Index of the document that each row, or its first token, belongs to: int64 of shape (rows,),
            non-decreasing.
        fingerprint: A hash of what the rows were made from.
        bytes: UTF-8 bytes of text that the rows cover.
        characters: Characters of text that the rows cover.
        dropped: Tokens of the documents that are in no row.
        report: The corpus report as plain values; empty if the rows were not made from a corpus.
        folder: The folder of the rows; None if they are in memory.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        ends: np.ndarray,
        document: np.ndarray,
        *,
        fingerprint: str,
        bytes: int = 0,
        characters: int = 0,
        dropped: int = 0,
        report: dict[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Wrap arrays; rows usually come from :func:`tokenize` or :meth:`of`.

        ``tokens`` are the ids of all rows, of any integer type, and ``ends`` the end of each row in them, exclusive.
        """
        self._tokens = tokens
        self._ends = ends
        self.document = document
        self.fingerprint = fingerprint
        self.bytes = bytes
        self.characters = characters
        self.dropped = dropped
        self.report = report or {}
        self.folder = folder

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[int]], *, document: Sequence[int] | None = None, bytes: int = 0
    ) -> TokenDataset:
        """Make rows in memory from lists of ids.

        Args:
            rows: The ids of each row.
            document: Index of the document of each row; by default each row is one document.
            bytes: UTF-8 bytes of text that the rows cover.
        """
        tokens = np.asarray([token for row in rows for token in row], dtype=np.int32)
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        documents = np.asarray(range(len(rows)) if document is None else document, dtype=np.int64)
        state = blake2b(digest_size=16)
        for array in (tokens, ends, documents):
            state.update(array.tobytes())
        return cls(tokens, ends, documents, fingerprint=state.hexdigest(), bytes=bytes)

    @classmethod
    def load(cls, folder: str | Path) -> TokenDataset:
        """Memory-map rows that ``TokenDatasetWriter`` wrote.

        Raises:
            OSError: If a file is missing.
            ValueError: If a file does not have the expected size.
        """
        folder = Path(folder)
        meta = read_json(folder / _META)
        rows, tokens = int(meta["rows"]), int(meta["tokens"])

        def mapped(name: str, kind: str, size: int) -> np.ndarray:
            path = folder / name
            if path.stat().st_size != size * np.dtype(kind).itemsize:
                raise ValueError(f"the size of '{path}' differs from that in '{_META}'")
            return np.memmap(path, kind, "r", shape=(size,)) if size else np.zeros(0, kind)

        return cls(
            mapped(_TOKENS, meta["dtype"], tokens),
            mapped(_ENDS, "<i8", rows),
            mapped(_DOCUMENTS, "<i8", rows),
            fingerprint=meta["fingerprint"],
            bytes=meta["bytes"],
            characters=meta["characters"],
            dropped=meta.get("dropped", 0),
            report=meta["report"],
            folder=folder,
        )

    def __reduce__(self) -> Any:
        # A spawned worker process maps the files again instead of receiving a copy.
        return (TokenDataset.load, (self.folder,)) if self.folder else super().__reduce__()

    def __repr__(self) -> str:
        return f"TokenDataset({len(self):,} rows, {self.tokens:,} tokens)"

    def __len__(self) -> int:
        return len(self._ends)

    def row(self, index: int) -> np.ndarray:
        """Return a copy of a row as int32 of shape (length,)."""
        start = int(self._ends[index - 1]) if index else 0
        return self._tokens[start : int(self._ends[index])].astype(np.int32)

    def lengths_of(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers of tokens of some rows: int64 of shape (indices,)."""
        rows = np.asarray(indices, dtype=np.int64)
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        return np.asarray(self._ends[rows] - starts)

    def place(self, index: int) -> str:
        """Return the number of the document of a row, counted from 1."""
        return f"document {int(self.document[index]) + 1:,}"

    def first_tokens(self, count: int) -> np.ndarray:
        """Return the first ``count`` token ids of all rows, concatenated, or all if there are fewer."""
        return self._tokens[:count]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, special tokens included, int32 of shape (rows,)."""
        return np.diff(self._ends, prepend=0).astype(np.int32)

    @property
    def tokens(self) -> int:
        """Number of tokens of all rows, special tokens included."""
        return len(self._tokens)


class RowSubset(Rows):
    """Some of the rows of a dataset.

    Attributes:
        lengths: Number of tokens of each row, int64 of shape (rows,).
        tokens: Number of tokens of all rows.
        report: The dataset's.
    """

    lengths: np.ndarray
    document: np.ndarray
    report: dict[str, Any]

    def __init__(self, rows: TokenDataset | RowSubset, indices: np.ndarray) -> None:
        """Take the rows with some indices, int64 of shape (rows,)."""
        self._rows, self._indices = rows, indices
        self.lengths, self.document, self.report = rows.lengths[indices], rows.document[indices], rows.report
        self.tokens = int(self.lengths.sum())

    def __len__(self) -> int:
        return len(self._indices)

    def row(self, index: int) -> np.ndarray:
        """Return a row."""
        return self._rows.row(int(self._indices[index]))

    def lengths_of(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers of tokens of some rows: int64 of shape (indices,)."""
        return self._rows.lengths_of(self._indices[np.asarray(indices, dtype=np.int64)])

    def place(self, index: int) -> str:
        """Return the number of the document of a row, counted from 1."""
        return self._rows.place(int(self._indices[index]))


class TokenDatasetWriter:
    """Writes rows to a folder, with constant memory, or collects them in memory.

    It is a context manager; the folder is complete after :meth:`finish`.
    """

    def __init__(self, folder: Path | None, largest_id: int, *, signed: bool = False) -> None:
        """Open the files.

        Args:
            folder: An existing folder; None collects the rows in memory.
            largest_id: The largest token id. Ids are stored as uint16 if it fits, else as uint32.
            signed: Whether rows hold complements of ids (:mod:`acclimate.data.chat`), which are stored as int32.
        """
        self.folder = folder
        self.rows = 0
        self.tokens = 0
        self.bytes = 0
        self.characters = 0
        self.dropped = 0
        self._kind = np.dtype("<i4" if signed else "<u2" if largest_id < 1 << 16 else "<u4")
        self._files: list[IO[bytes]] = []
        with ExitStack() as stack:
            for name in (_TOKENS, _ENDS, _DOCUMENTS):
                file: IO[bytes] = (folder / name).open("wb") if folder else io.BytesIO()
                self._files.append(stack.enter_context(file))
            self._open = stack.pop_all()

    def __enter__(self) -> TokenDatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, rows: Sequence[Sequence[int] | np.ndarray], document: int | Sequence[int]) -> None:
        """Append rows, given the index of the document of all of them or of each."""
        ends = self.tokens + np.cumsum([len(row) for row in rows], dtype="<i8")
        self.tokens = int(ends[-1])
        self.rows += len(rows)
        arrays = (
            np.concatenate([np.asarray(row, dtype=self._kind) for row in rows]),
            ends,
            np.full(len(rows), document, dtype="<i8"),
        )
        for file, array in zip(self._files, arrays, strict=True):
            file.write(array.tobytes())

    def finish(self, fingerprint: str, report: dict[str, Any]) -> TokenDataset | None:
        """Complete the folder and return None, or return the rows that were collected in memory."""
        about = {name: getattr(self, name) for name in ("bytes", "characters", "dropped")}
        about |= {"fingerprint": fingerprint, "report": report}
        if self.folder:
            for file in self._files:
                file.flush()
            meta = {"rows": self.rows, "tokens": self.tokens, "dtype": self._kind.str, **about}
            write_json(self.folder / _META, meta)
            return None
        kinds = (self._kind, np.dtype("<i8"), np.dtype("<i8"))
        data = [cast(io.BytesIO, file).getvalue() for file in self._files]
        arrays = (np.frombuffer(part, kind) for part, kind in zip(data, kinds, strict=True))
        return TokenDataset(*arrays, **about)


@dataclass(frozen=True)
class RowAccount:
    """Statistics of the documents of a corpus and the rows made of them.

    Attributes:
        documents: Number of documents.
        texts: Number of texts that they were split into.
        tokens: Tokens of all texts, special tokens included.
        dropped_tokens: Tokens of documents that are in no text.
        padding: Share of padding among the tokens of the micro-batches.
        split_documents: Documents of more than one text; None if documents are joined.
        unpredicted_tokens: Tokens that are not predicted because a text that continues a document, or joined
            documents, starts with them; None for a masked model.
    """

    documents: int
    texts: int
    tokens: int
    dropped_tokens: int
    padding: float
    split_documents: int | None = None
    unpredicted_tokens: int | None = None

    @classmethod
    def of(cls, rows: TokenDataset, kind: ModelKind, padding: float, *, joined: bool) -> RowAccount:
        """Count what is in the rows of a training text."""
        documents = int(rows.report.get("documents", 0)) or len(np.unique(rows.document))
        first = np.diff(rows.document, prepend=-1) > 0  # the first text of each document that starts one
        continued = len(rows) - int(first.sum())
        split = None if joined else int((np.bincount(np.cumsum(first)) > 1).sum())
        return cls(
            documents,
            len(rows),
            rows.tokens,
            rows.dropped,
            round(padding, 4),
            split,
            None if kind.uses_masking else len(rows) - 1 if joined else continued,
        )

    def summary(self) -> str:
        """Return the account as one line."""
        parts = [f"{self.tokens:,} tokens in {self.texts:,} texts"]
        if self.split_documents:
            parts.append(f"split documents: {self.split_documents:,}")
        if self.unpredicted_tokens:
            parts.append(f"tokens not predicted because a text starts with them: {self.unpredicted_tokens:,}")
        parts += [f"padding: {self.padding:.1%}", f"dropped tokens: {self.dropped_tokens:,}"]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that apply as plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}
