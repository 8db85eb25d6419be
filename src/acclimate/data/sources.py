"""Resolves the names that a user gives into sources: files, Hugging Face datasets, texts in memory."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from acclimate.base.errors import Problems, UserError, first_line, printable, warn_once
from acclimate.base.files import check_regular_file
from acclimate.data.conversion import conversion_version
from acclimate.data.csv_reader import DEFAULT_COLUMN, infer_column, missing_column_error
from acclimate.data.opening import (
    CONVERTED,
    FORMATS_DESCRIPTION,
    advise_encoding,
    check_encoding,
    check_extra,
    check_file,
    detect_format,
    missing_extra,
)
from acclimate.data.readers import Record, TxtLayout, holds_rows, read_records, records_from_rows

# Files up to this size are hashed whole, so that a copy or a fresh clone counts as the same corpus.
MAX_FULLY_HASHED_BYTES = 1 << 28
_HASH_CHUNK_BYTES = 1 << 20
MAX_PATH_BYTES = 4096  # what systems allow; a longer name is a text
SPEC_KEYS = ("path", "text_column", "encoding")
DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files that ``datasets`` saves with the rows."""
ACCOUNT_ENDING = ".account.json"
"""Ending of the name of the report next to a text that selections made."""
OTHER_FILES = "being of an unknown format, a README, or JSON without the text column"
_FORMAT_VERSIONS = {".csv": 3, ".tsv": 3}
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
    """One file on disk, with its text column if it differs from the corpus's, and its encoding if it is not UTF-8."""

    path: Path
    column: str | None = None
    encoding: str | None = None

    @property
    def name(self) -> str:
        """The path, printable."""
        return printable(str(self.path))

    @property
    def size(self) -> int | None:
        """Size in bytes; None if the file no longer exists."""
        return self.path.stat().st_size if self.path.is_file() else None

    @property
    def account(self) -> Path:
        """The file that says which selections made this one, if any did."""
        return self.path.with_name(self.path.name + ACCOUNT_ENDING)

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the records of the file."""
        return read_records(self.path, self.column or text_column, txt, self.encoding)

    def advise_encoding(self) -> str:
        """Return advice on the encoding of the file, for a message that it is not UTF-8."""
        return advise_encoding(self.path)

    def fingerprint(self) -> str:
        """Hash the format and the content; of a file above 256 MiB its size, modification time and both ends.

        Raises:
            UserError: If the file cannot be read.
        """
        check_regular_file(self.path)
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
        version += f" {conversion_version()}" if form in CONVERTED else ""
        read = "".join(f" {value}" for value in (self.column, self.encoding) if value)
        return f"{form}{version}{read} {state.hexdigest()}"


def is_hub_name(source: object) -> bool:
    """Return whether a source is written as a dataset of the Hugging Face Hub: ``hf:NAME``."""
    return isinstance(source, str) and source.startswith("hf:")


def parse_hub_name(source: str) -> tuple[str, str | None, str | None, str | None]:
    """Return the dataset, the configuration, the split and the column of ``hf:NAME[:CONFIG[:SPLIT[:COLUMN]]]``.

    Raises:
        UserError: If there is no name or there are too many parts.
    """
    name, *rest = source.removeprefix("hf:").split(":")
    if not name or len(rest) > 3:
        raise UserError(f"Cannot read '{source}': write hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT[:COLUMN].")
    config, split, column, *_ = [*(part or None for part in rest), None, None, None]
    return name, config, split, column


def load_hub(source: str) -> Any:
    """Load a dataset of the Hub, or one split of it if the name has one.

    Raises:
        UserError: If it cannot be read.
    """
    name, config, split, _ = parse_hub_name(source)
    try:
        from datasets import load_dataset

        return load_dataset(name, config, split=split)
    except Exception as error:  # the library has an exception class for every way in which a name can fail
        raise UserError(f"Cannot open '{source}': {first_line(error).rstrip('.')}.") from error


@dataclass(frozen=True)
class HubSource:
    """A Hugging Face dataset, streamed through ``datasets``.

    It is written ``hf:NAME``, ``hf:NAME:CONFIG``, ``hf:NAME:CONFIG:SPLIT`` or ``hf:NAME:CONFIG:SPLIT:COLUMN``. The
    default split is ``train``; an empty configuration (``hf:NAME::SPLIT``) means the default one.
    """

    dataset: str
    config: str | None = None
    split: str = "train"
    column: str | None = None

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Parse ``hf:...``.

        Raises:
            UserError: If there is no name or there are too many parts.
        """
        name, config, split, column = parse_hub_name(source)
        return cls(name, config, split or "train", column)

    @property
    def name(self) -> str:
        """The dataset as the user writes it."""
        return f"hf:{self.dataset}:{self.config or ''}:{self.split}" + (f":{self.column}" if self.column else "")

    def records(self, text_column: str, txt: TxtLayout) -> Iterator[Record]:
        """Stream the rows of the split, with row numbers instead of line numbers.

        Raises:
            UserError: If the dataset cannot be read or has no such column.
        """
        column = self.column or text_column
        return records_from_rows(self.name, self._rows(column), column)

    def _rows(self, text_column: str) -> Iterator[tuple[int, object]]:
        from datasets import load_dataset

        number = 0
        try:
            rows = load_dataset(self.dataset, self.config, split=self.split, streaming=True)
            if rows.column_names and infer_column(self.name, text_column, rows.column_names) is None:
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
        """Stream the texts, with positions from 1 instead of line numbers."""
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


def is_metadata(name: str) -> bool:
    """Return whether a file of this name is written next to the rows of a dataset or a selected text."""
    return name in DATASET_FILES or name.endswith(ACCOUNT_ENDING)


def is_source(name: str) -> bool:
    """Return whether a string is the name of a dataset, an existing file or folder, or looks like one."""
    path, _, column = name.rpartition(":")
    try:
        exists = _matches(name) or bool(path and column and _matches(path))
    except (OSError, ValueError):  # a text that is too long for a path, or holds a NUL character
        exists = False
    return exists or is_hub_name(name) or (detect_format(Path(name)) is not None and "\n" not in name)


def resolve_sources(
    sources: str | Path | Iterable[str | Path | Mapping[str, str]],
    text_column: str = DEFAULT_COLUMN,
    encoding: str | None = None,
) -> list[Source]:
    """Resolve names into sources, each file once, in the order given (sorted inside folders and globs).

    Args:
        sources: One or several of: a file; a folder, searched recursively for files of known formats that are not
            hidden; a glob (``**`` matches folders, too); a Hugging Face dataset as ``hf:NAME:CONFIG:SPLIT``. The text
            column of a source may follow after a colon: ``reviews.csv:body``. ``{"path": ..., "text_column": ...,
            "encoding": ...}`` is a source with its own column and encoding.
        text_column: The column of sources that name none.
        encoding: The encoding of files that name none, if it is not UTF-8.

    Raises:
        UserError: If some of them do not exist, match nothing, cannot be listed, or are of an unknown format.
    """
    named = [sources] if isinstance(sources, str | Path | Mapping) else list(sources)
    if not named:
        raise UserError("No corpus is given: name at least one file, folder, glob or Hugging Face dataset (hf:NAME).")
    found: list[Source] = []
    seen: set[object] = set()
    problems = Problems()
    for source in named:
        new: Sequence[Source] = ()
        with problems.collect():
            column = own_encoding = None
            if isinstance(source, Mapping):
                source, column, own_encoding = _read_spec(source)
            if not isinstance(source, str | Path):
                raise UserError(
                    f"A source of text is a {type(source).__name__}; give names of files, 'hf:NAME', or a list of "
                    "texts."
                )
            if is_hub_name(source):
                hub = HubSource.parse(str(source))
                new = [replace(hub, column=column) if column else hub]
            else:
                files = _find_files(source, column or text_column)
                new = [
                    replace(file, column=column or file.column, encoding=own_encoding or encoding) for file in files
                ]
        for item in new:
            key = replace(item, path=Path(os.path.realpath(item.path))) if isinstance(item, FileSource) else item
            if key not in seen:
                seen.add(key)
                found.append(item)
    problems.check()
    return found


def _read_spec(source: Mapping[str, str]) -> tuple[str | Path, str | None, str | None]:
    """Return the path, the text column and the encoding of a source."""
    if "path" not in source or not source.keys() <= set(SPEC_KEYS):
        raise UserError(f"A source of text has the keys {', '.join(SPEC_KEYS)}, not {', '.join(map(str, source))}.")
    if source.get("encoding"):
        check_encoding(source["encoding"])
    return source["path"], source.get("text_column"), source.get("encoding")


def refuse_url(source: object) -> None:
    """Check that a name is not an address.

    Raises:
        UserError: If it is one.
    """
    if re.match(r"[A-Za-z][\w+.-]*:/{1,2}\w", str(source)) and not os.path.exists(str(source)):
        raise UserError(f"'{source}' is an address, and addresses are not read; download it, or give hf:NAME.")


def _find_files(source: str | Path, text_column: str) -> list[FileSource]:
    """Return the files that a name refers to, with the column that it names."""
    if not str(source):
        raise UserError("The name of a corpus is empty: name a file, folder, glob or Hugging Face dataset (hf:NAME).")
    refuse_url(source)
    if "\n" in str(source) or len(str(source).encode(errors="replace")) > MAX_PATH_BYTES:
        raise UserError(f"'{str(source)[:40]}...' is not the name of a file. Give a text itself in a list of texts.")
    try:
        path = Path(source).expanduser()
        name, _, column = str(path).rpartition(":")
        if name and column and not _matches(str(path)) and _matches(name):
            return [FileSource(file, column) for file in _match_files(Path(name), column)]
        return [FileSource(file) for file in _match_files(path, text_column)]
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error).rstrip(".")
        raise UserError(f"Cannot read '{getattr(error, 'filename', None) or source}': {reason}.") from error


def name_column(source: str, column: str) -> str:
    """Return the name of a source with its text column, as in ``data.csv:body``; one that names a column is kept."""
    if column == DEFAULT_COLUMN:
        return source
    if is_hub_name(source):
        name, config, split, own = parse_hub_name(source)
        return source if own else f"hf:{name}:{config or ''}:{split or ''}:{column}"
    return f"{source}:{column}" if _matches(os.path.expanduser(source)) else source


def _matches(name: str) -> bool:
    """Return whether a name or a glob matches a file or folder."""
    return Path(name).exists() or bool(glob.has_magic(name) and glob.glob(name, recursive=True))


def _match_files(path: Path, text_column: str) -> list[Path]:
    if path.is_dir():
        files = _list_files(path, text_column)
        if not files:
            raise UserError(f"The folder '{path}' contains no file of a known format: {FORMATS_DESCRIPTION}.")
        return files
    if glob.has_magic(str(path)) and not path.exists():
        return _match_pattern(path, text_column)
    check_file(path)
    if detect_format(path) is None:
        raise UserError(f"The format of '{path}' is unknown. Supported: {FORMATS_DESCRIPTION}.")
    check_extra(path)
    return [path]


def _match_pattern(path: Path, text_column: str) -> list[Path]:
    _check_folders_of_pattern(path)
    matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    # "**" matches a folder and its files; resolve_sources() drops the duplicates.
    files = [file for match in matches for file in (_list_files(match, text_column) if match.is_dir() else [match])]
    with_readme = path.name.lower().endswith((".md", ".markdown"))
    known = [file for file in files if detect_format(file) and (with_readme or not _is_readme(file))]
    usable = [file for file in known if not missing_extra(detect_format(file))]
    if not usable:
        if not matches:
            raise UserError(f"'{path}' matches nothing; give a file, a folder or a pattern in quotes.")
        for file in known[:1]:
            check_extra(file)
        raise UserError(f"'{path}' matches no file of a known format: {FORMATS_DESCRIPTION}.")
    _warn_left_out(path, [file for file in files if file not in set(usable)])
    for file in usable:
        check_file(file)
    return usable


def _check_folders_of_pattern(pattern: Path) -> None:
    """Check that every folder in which files may match can be listed; ``glob`` passes over those that cannot.

    Raises:
        OSError: If one cannot.
    """
    for part in (pattern, *pattern.parents):
        if glob.has_magic(str(part)):
            for folder in filter(os.path.isdir, glob.glob(str(part.parent), recursive=True)):
                os.scandir(folder).close()


def _list_files(folder: Path, text_column: str) -> list[Path]:
    """Return the files of known formats in a folder and its subfolders, without hidden ones; links are followed.

    A ``.json`` file counts if it has the text column, since many folders also hold settings in JSON. ``README.md``
    does not, since it usually describes the other files. Of a ``DatasetDict`` that was saved, only train is read.

    Raises:
        UserError: If a file is a pipe, a device, or a link without a target.
        OSError: If a folder cannot be read.
    """
    found: list[Path] = []
    others: list[Path] = []
    seen: set[str] = set()
    folders = [str(folder)]
    while folders:
        place = folders.pop()
        if (real := os.path.realpath(place)) in seen:  # a link to a folder that contains it
            continue
        seen.add(real)
        if (Path(place) / "dataset_dict.json").is_file() and (Path(place) / "train").is_dir():
            warn_once(
                f"'{place}' has splits, of which only 'train' is read; name others as folders, such as {place}/test."
            )
            folders.append(str(Path(place) / "train"))
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if os.path.isdir(entry.path):  # unlike entry.is_dir(), False for a link to itself
                    folders.append(entry.path)
                elif not is_metadata(entry.name):
                    (found if _is_read(path, text_column) else others).append(path)
    if not found and (unread := [path for path in sorted(others) if missing_extra(detect_format(path))]):
        check_extra(unread[0])
    if found:
        _warn_left_out(folder, others)
    return sorted(found)


def _is_readme(path: Path) -> bool:
    return path.name.lower() in ("readme.md", "readme.markdown")


def _is_read(path: Path, text_column: str) -> bool:
    """Return whether a file in a folder is text of a format that can be read."""
    form = detect_format(path)
    if form is None or missing_extra(form) or _is_readme(path):
        return False
    check_file(path)
    return form != ".json" or holds_rows(path, text_column)


def _warn_left_out(place: Path, files: list[Path]) -> None:
    """Count and name the files of a folder or pattern that are not read, by what would have to be installed."""
    for missing in sorted({missing_extra(detect_format(file)) for file in files}):
        left = sorted(file for file in files if missing_extra(detect_format(file)) == missing)
        names = ", ".join(printable(str(file).removeprefix(f"{place}{os.sep}")) for file in left[:5])
        count = "1 file is" if len(left) == 1 else f"{len(left)} files are"
        reason = f"without a further package (pip install '{missing}')" if missing else OTHER_FILES
        more = ", ..." if len(left) > 5 else ""
        warn_once(f"'{printable(str(place))}': {count} left out, {reason}: {names}{more}.")
