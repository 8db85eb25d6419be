"""What the user names becomes a list of sources: files, data sets of the hub, texts in memory."""

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

# Files up to this size (bytes) are known by their content, so that a copy or a fresh clone is the same corpus.
MAX_FULLY_HASHED_BYTES = 1 << 28
_HASH_CHUNK_BYTES = 1 << 20
_FORMAT_VERSIONS = {".csv": 2, ".tsv": 2}
"""By format; raise when the same files of one come to give other documents."""


class Source(Protocol):
    """Something that gives records."""

    @property
    def name(self) -> str:
        """The name for reports and messages."""

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the records, from the start at every call."""

    def fingerprint(self) -> str:
        """A text that differs when the records do."""


@dataclass(frozen=True)
class FileSource:
    """One file on disk."""

    path: Path

    @property
    def name(self) -> str:
        """The path as the user would write it."""
        return str(self.path)

    @property
    def size(self) -> int | None:
        """In bytes; None if it is gone."""
        return self.path.stat().st_size if self.path.is_file() else None

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the records of the file."""
        return read_records(self.path, text_column, txt)

    def fingerprint(self) -> str:
        """Hash the format and the content; above 256 MiB the size, the time of change and both ends stand for it."""
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
    """A data set of the hub, streamed through ``datasets``.

    Written ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT``. Without a split it is ``train``;
    an empty configuration (``hf:NAME::SPLIT``) is the default one.
    """

    dataset: str
    config: str | None = None
    split: str = "train"

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Read ``hf:...``.

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
        """The data set in the notation of the user."""
        return f"hf:{self.dataset}:{self.config or ''}:{self.split}"

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the rows of the split; their numbers stand for line numbers.

        Raises:
            UserError: If the data set cannot be opened or has no such column.
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
            # The library raises a different class for each way in which a name can be wrong or a connection break.
            # To go on with what has come so far would quietly train on a part.
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            where = f"Reading '{self.name}' broke off at row {number}" if number else f"Cannot open '{self.name}'"
            raise UserError(f"{where}: {reason}.") from error

    def fingerprint(self) -> str:
        """The name; the hub is taken not to change under it."""
        return self.name


@dataclass(frozen=True)
class ListSource:
    """Texts in memory."""

    texts: tuple[object, ...]
    name: str = "memory"

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Give the texts; positions from 1 stand for line numbers."""
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
    """Turn what the user names into sources, each file once, in the order named (sorted inside folders and globs).

    Args:
        sources: One or several of: a file; a folder, searched through for files of known formats except hidden ones;
            a glob (``**`` matches folders too); a data set of the hub as ``hf:NAME:CONFIG:SPLIT``.

    Raises:
        UserError: If one of them does not exist, matches nothing, or is a file of an unknown format.
    """
    named = [sources] if isinstance(sources, str | Path) else list(sources)
    if not named:
        raise UserError("No corpus is given: name at least one file, folder, glob or data set (hf:NAME).")
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
    """Return the files that a source stands for; a name that is too long, or in the home folder of nobody, is told."""
    try:
        return _match_files(source)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error).rstrip(".")
        raise UserError(f"Cannot look for '{source}': {reason}.") from error


def _match_files(source: str | Path) -> list[Path]:
    if not str(source):
        raise UserError("A corpus has an empty name: name a file, folder, glob or data set (hf:NAME).")
    path = Path(source).expanduser()
    if path.is_dir():
        files = _list_files(path)
        if not files:
            raise UserError(f"The folder '{path}' has no file of a known format: {FORMATS_DESCRIPTION}.")
        return files
    if path.exists():
        if detect_format(path) is None:
            raise UserError(f"The format of '{path}' is not known by its ending. Known: {FORMATS_DESCRIPTION}.")
        return [path]
    if glob.has_magic(str(path)):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        # A folder that ** matches as well would bring its files a second time; resolve() drops those.
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
        hint = (
            f" If it is a data set of the hub, write 'hf:{path}'." if len(path.parts) == 2 and not path.suffix else ""
        )
        return UserError(f"There is no file '{path}': its folder '{parent}' does not exist.{hint}")
    close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1, cutoff=0.6)
    if close:
        return UserError(f"There is no file '{path}'. Did you mean '{parent / close[0]}'?")
    hint = "" if path.suffix or path.is_absolute() else f" If it is a data set of the hub, write 'hf:{path}'."
    return UserError(f"There is no file '{path}'.{hint}")
