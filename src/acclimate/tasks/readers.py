"""Reading the files of a task folder. A row that cannot be used is an error; no row is dropped silently."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow
import pyarrow.parquet

from acclimate.corpus.csv_reader import split_unquoted_tsv_rows
from acclimate.errors import UserError, first_line

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
"""The splits of a task, and the possible file names of each."""


def find_split_file(folder: Path, split: str, formats: Iterable[str]) -> Path | None:
    """Return the file of a split; None if it is dev and there is none.

    Args:
        folder: Folder of the task.
        split: A key of :data:`SPLITS`.
        formats: File extensions that can be read, the usual one first.

    Raises:
        UserError: If there are several files, or none for train or test.
    """
    endings = list(formats)
    found = [file for stem in SPLITS[split] for ending in endings if (file := folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise UserError(f"'{folder}' has several {split} files ({_list_names(found)}); keep one.")
    if not found and split != "dev":
        raise UserError(
            f"'{folder}' has no {split} file; it needs {split}{endings[0]} (or {', '.join(endings[1:])}). "
            f"Found: {_list_names(folder.iterdir())}."
        )
    return found[0] if found else None


def _list_names(files: Iterable[Path]) -> str:
    names = sorted(file.name for file in files)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"


FORMATS = (".jsonl", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.gz", ".tsv.gz")
CELL_LIMIT = 2**31 - 1
"""Maximum characters per CSV cell; the default of the csv module, 131,072, is too small for long documents."""

Row = tuple[str, dict[str, Any]]
"""The location of a row for messages (``file:line``), and its values by column."""


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a ``.jsonl``, ``.csv``, ``.tsv`` (each also ``.gz``) or ``.parquet`` file.

    Fields of tables may be quoted with ``"``. In a TSV file, a quotation that extends over several complete rows is
    read as rows: see :func:`acclimate.corpus.csv_reader.split_unquoted_tsv_rows`.

    Raises:
        UserError: If a line cannot be parsed, the text is not UTF-8, or the file is damaged.
    """
    try:
        if path.suffix == ".parquet":
            yield from _read_parquet(path)
            return
        with _open_binary(path) as file:
            kind = path.name.removesuffix(".gz").rpartition(".")[2]
            yield from _read_json_lines(path, file) if kind == "jsonl" else _read_table(path, file, kind)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"'{path}' cannot be read: {first_line(error)}.") from error


def _open_binary(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _decode_lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Decode line by line, so that the error names the line with the wrong encoding."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not UTF-8 text; save the file as UTF-8.") from error


def _read_json_lines(path: Path, file: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(_decode_lines(path, file), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line, object_pairs_hook=partial(_reject_duplicate_keys, where))
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", type(error).__name__)
            raise UserError(f"{where}: broken JSON ({reason}); fix or remove the line.") from error
        if not isinstance(row, dict):
            raise UserError(f'{where}: a row must be a JSON object such as {{"text": ..., "label": ...}}.')
        yield where, row


def _reject_duplicate_keys(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of key-value pairs.

    Raises:
        UserError: If a key is duplicated.
    """
    row = dict(pairs)
    if len(row) < len(pairs):
        raise UserError(f"{where}: the key '{_first_duplicate([name for name, _ in pairs])}' is duplicated; keep one.")
    return row


def _first_duplicate(names: Sequence[str]) -> str | None:
    """Return the first duplicated name, or None; columns without a name do not count."""
    return next((name for place, name in enumerate(names) if name and name in names[:place]), None)


def _read_table(path: Path, file: IO[bytes], kind: str) -> Iterator[Row]:
    before = csv.field_size_limit(CELL_LIMIT)
    read: list[str] = []  # the lines of the current row
    reader = csv.reader(
        _record_lines(_decode_lines(path, file), read), delimiter="\t" if kind == "tsv" else ",", strict=True
    )
    try:
        header = next(reader, None)
        if header is None:
            return
        if (duplicate := _first_duplicate(header)) is not None:
            raise UserError(f"{path}:1: two columns are named '{duplicate}'; rename one.")
        read.clear()
        for cells in reader:
            rows = split_unquoted_tsv_rows(read, len(header)) if kind == "tsv" else []
            read.clear()
            if rows:
                for number, row in enumerate(rows, reader.line_num - len(rows) + 1):
                    yield f"{path}:{number}", dict(zip(header, row, strict=True))
                continue
            if not cells:
                continue
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                raise UserError(f"{where}: {len(cells)} cells, but the header has {len(header)}; fix the line.")
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: broken {kind.upper()} ({error}); fix the line.") from error
    finally:
        csv.field_size_limit(before)


def _record_lines(lines: Iterator[str], read: list[str]) -> Iterator[str]:
    """Pass lines on, and append each to ``read``."""
    for line in lines:
        read.append(line)
        yield line


def _read_parquet(path: Path) -> Iterator[Row]:
    with pyarrow.parquet.ParquetFile(path) as file:
        if (duplicate := _first_duplicate(file.schema_arrow.names)) is not None:
            raise UserError(f"{path}: two columns are named '{duplicate}'; rename one.")
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", row
