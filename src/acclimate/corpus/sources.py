"""Resolves the names that a user gives into sources: files, Hugging Face datasets, texts in memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from acclimate.corpus.csv_reader import missing_column_error
from acclimate.corpus.readers import (
    FORMATS_DESCRIPTION,
    Record,
    TxtLayout,
    detect_format,
    read_records,
    records_from_rows,
)
from acclimate.errors import UserError, first_line

# Files up to this size are hashed whole, so that a copy or a fresh clone counts as the same corpus.
MAX_FULLY_HASHED_BYTES = 1 << 28
_HASH_CHUNK_BYTES = 1 << 20
_FORMAT_VERSIONS = {".csv": 2, ".tsv": 2}
"""Per format; increment when the same file gives different documents."""


class Source(Protocol):
    """A source of records."""

    @property
    def name(self) -> str:
        """The name for reports and messages."""

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the records from the start."""

    def fingerprint(self) -> str:
        """Return a string that differs if the records differ."""


@dataclass(frozen=True)
class FileSource:
    """One file on disk."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def size(self) -> int | None:
        """Size in bytes; None if the file no longer exists."""
        return self.path.stat().st_size if self.path.is_file() else None

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the records of the file."""
        return read_records(self.path, text_column, txt)

    def fingerprint(self) -> str:
        """Hash the format and the content; of a file above 256 MiB its size, modification time and both ends.

        Raises:
            UserError: If the file cannot be read.
        """
        state = blake2b(digest_size=16)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                if size <= MAX_FULLY_HASHED_BYTES:
                    while piece := file.read(_HASH_CHUNK_BYTES):
                        state.update(piece)
                else:
                    state.update(f"{size} {self.path.stat().st_mtime_ns}".encode())
                    state.update(file.read(_HASH_CHUNK_BYTES))
                    file.seek(-_HASH_CHUNK_BYTES, os.SEEK_END)
                    state.update(file.read(_HASH_CHUNK_BYTES))
        except OSError as error:
            raise UserError(f"Cannot read '{self.path}': {error.strerror or error}.") from error
        form = detect_format(self.path)
        version = f" {_FORMAT_VERSIONS[form]}" if form in _FORMAT_VERSIONS else ""
        return f"{form}{version} {state.hexdigest()}"


@dataclass(frozen=True)
class HubSource:
    """A Hugging Face dataset, streamed through ``datasets``.

    It is written ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT``. The default split is ``train``; an empty
    configuration (``hf:NAME::SPLIT``) means the default one.
    """

    dataset: str
    config: str | None = None
    split: str = "train"

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Parse ``hf:...``.

        Raises:
            UserError: If there is no name or there are too many parts.
        """
        name, *rest = source.removeprefix("hf:").split(":")
        if not name or len(rest) > 2:
            raise UserError(f"Cannot read '{source}': write hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT.")
        config = rest[0] if rest else ""
        split = rest[1] if len(rest) > 1 else ""
        return cls(name, config or None, split or "train")

    @property
    def name(self) -> str:
        """The dataset as the user writes it."""
        return f"hf:{self.dataset}:{self.config or ''}:{self.split}"

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the rows of the split, with row numbers in place of line numbers.

        Raises:
            UserError: If the dataset cannot be read or has no such column.
        """
        return records_from_rows(self.name, self._rows(text_column), text_column)

    def _rows(self, text_column: str) -> Iterator[tuple[int, object]]:
        from datasets import load_dataset

        number = 0
        try:
            rows = load_dataset(self.dataset, self.config, split=self.split, streaming=True)
            if rows.column_names and text_column not in rows.column_names:
                raise missing_column_error(self.name, text_column, rows.column_names)
            for number, row in enumerate(rows, start=1):
                yield number, row
        except UserError:
            raise
        except Exception as error:
            # The library has an exception class for every way in which a name or a connection can fail. Continuing
            # with the rows so far would silently train on a part of the data.
            where = f"Reading '{self.name}' stopped at row {number}" if number else f"Cannot open '{self.name}'"
            raise UserError(f"{where}: {first_line(error).rstrip('.')}.") from error

    def fingerprint(self) -> str:
        """Return the name; the dataset is assumed not to change."""
        return self.name


@dataclass(frozen=True)
class ListSource:
    """Texts in memory."""

    texts: tuple[object, ...]
    name: str = "memory"

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the texts, with positions from 1 in place of line numbers."""
        return records_from_rows(
            self.name, enumerate(({text_column: text} for text in self.texts), start=1), text_column
        )

    def fingerprint(self) -> str:
        """Hash the texts."""
        state = blake2b(digest_size=16)
        for text in self.texts:
            data = str(text).encode("utf-8", "surrogatepass")
            state.update(f"{type(text).__name__} {len(data)} ".encode())
            state.update(data)
        return f"memory {state.hexdigest()}"


def resolve_sources(sources: str | Path | Iterable[str | Path]) -> list[Source]:
    """Resolve names into sources, each file once, in the order given (sorted inside folders and globs).

    Args:
        sources: One or several of: a file; a folder, searched recursively for files of known formats that are not
            hidden; a glob (``**`` matches folders, too); a Hugging Face dataset as ``hf:NAME:CONFIG:SPLIT``.

    Raises:
        UserError: If one of them does not exist, matches nothing, or is a file of an unknown format.
    """
    named = [sources] if isinstance(sources, str | Path) else list(sources)
    if not named:
        raise UserError("No corpus is given: name at least one file, folder, glob or Hugging Face dataset (hf:NAME).")
    found: list[Source] = []
    seen: set[object] = set()
    for source in named:
        if isinstance(source, str) and source.startswith("hf:"):
            new: Sequence[Source] = [HubSource.parse(source)]
        else:
            new = [FileSource(path) for path in _find_files(source)]
        for item in new:
            key = item.path.resolve() if isinstance(item, FileSource) else item
            if key not in seen:
                seen.add(key)
                found.append(item)
    return found


def _find_files(source: str | Path) -> list[Path]:
    """Return the files that a name refers to.

    Raises:
        UserError: If there are none, or if the name is not a valid path (too long, or ``~`` of an unknown user).
    """
    try:
        return _match_files(source)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error).rstrip(".")
        raise UserError(f"Cannot read '{source}': {reason}.") from error


def _match_files(source: str | Path) -> list[Path]:
    if not str(source):
        raise UserError("The name of a corpus is empty: name a file, folder, glob or Hugging Face dataset (hf:NAME).")
    path = Path(source).expanduser()
    if path.is_dir():
        files = _list_files(path)
        if not files:
            raise UserError(f"The folder '{path}' contains no file of a known format: {FORMATS_DESCRIPTION}.")
        return files
    if path.exists():
        if detect_format(path) is None:
            raise UserError(f"The format of '{path}' is unknown. Supported: {FORMATS_DESCRIPTION}.")
        return [path]
    if glob.has_magic(str(path)):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        # "**" matches a folder and its files; resolve_sources() drops the duplicates.
        files = [file for match in matches for file in (_list_files(match) if match.is_dir() else [match])]
        usable = [file for file in files if detect_format(file)]
        if not usable:
            if not matches:
                raise UserError(f"'{source}' matches nothing; give a file, a folder or a pattern in quotes.")
            raise UserError(f"'{source}' matches no file of a known format: {FORMATS_DESCRIPTION}.")
        return usable
    raise _missing_file_error(path)


def _list_files(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and detect_format(path))
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _missing_file_error(path: Path) -> UserError:
    parent = path.parent
    if not parent.is_dir():
        hint = f" For a Hugging Face dataset, write 'hf:{path}'." if len(path.parts) == 2 and not path.suffix else ""
        return UserError(f"There is no file '{path}': its folder '{parent}' does not exist.{hint}")
    close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1, cutoff=0.6)
    if close:
        return UserError(f"There is no file '{path}'. Did you mean '{parent / close[0]}'?")
    hint = "" if path.suffix or path.is_absolute() else f" For a Hugging Face dataset, write 'hf:{path}'."
    return UserError(f"There is no file '{path}'.{hint}")
