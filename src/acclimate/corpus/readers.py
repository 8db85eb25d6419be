"""One reader per format: a file becomes a stream of records.

A record is ``(line, text, problem)``: the line (row, for parquet) where it starts, counted from 1; its text, empty for
a blank record; and, for a record that cannot be used, the reason (empty when all is well). A bad record never ends the
stream. What makes the whole file useless, such as a text column that is not there, raises ``UserError``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from acclimate.corpus.csv_reader import duplicate_column_error, missing_column_error, read_csv
from acclimate.corpus.line_reader import DamagedFileError, read_numbered_lines

Record = tuple[int, str, str]
TxtLayout = Literal["auto", "line", "block"]

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
SUFFIXES = (*FORMATS, *(form + pack for form in FORMATS if form != ".parquet" for pack in (".gz", ".zst")))
FORMATS_DESCRIPTION = f"{', '.join(FORMATS)} (all but .parquet also with .gz or .zst added)"

# A file in which no row has had the text column by then is taken for one that never has it: a user who mistypes the
# name should not wait until the end of many gigabytes to learn so.
MAX_ROWS_WITHOUT_COLUMN = 10_000
# Blocks longer than this on average are taken for files of one document a line with a stray blank line.
MAX_MEAN_BLOCK_LINES = 50

_BLANK = object()


def detect_format(path: Path) -> str | None:
    """Return the format (``".txt"``, ``".jsonl"``, ...) that the name of ``path`` stands for, or None."""
    name = path.name.lower()
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    return suffix and suffix.removesuffix(".gz").removesuffix(".zst")


def detect_txt_layout(path: Path) -> Literal["line", "block"]:
    """Decide from the first 1000 lines whether a text file holds a document a line or a document a block.

    Blocks are runs of lines with blank lines between them. The file is read as blocks if there are at least two and
    they have no more than 50 lines on average. A blank line only at the start or the end decides nothing.
    """
    blocks = filled = 0
    inside = False
    try:
        for _, line in islice(read_numbered_lines(path), 1000):
            here = bool(line.strip())
            filled += here
            blocks += here and not inside
            inside = here
    except DamagedFileError:
        pass  # the reader will report it
    return "block" if blocks > 1 and filled <= MAX_MEAN_BLOCK_LINES * blocks else "line"


def read_records(path: Path, text_column: str = "text", txt: TxtLayout = "auto") -> Iterator[Record]:
    """Stream the records of one file.

    Args:
        path: A file whose name ends in one of ``SUFFIXES``.
        text_column: The key or column that holds the text; not used for ``.txt``.
        txt: How ``.txt`` files are cut: a document a line, a document a block, or decided by ``detect_txt_layout``.

    Raises:
        UserError: If the file cannot be opened or has no such column.
    """
    form = detect_format(path)
    try:
        if form == ".txt":
            layout = detect_txt_layout(path) if txt == "auto" else txt
            yield from _read_lines(path) if layout == "line" else _read_blocks(path)
        elif form == ".jsonl":
            yield from _read_jsonl(path, text_column)
        elif form == ".parquet":
            yield from _read_parquet(path, text_column)
        else:
            yield from read_csv(path, text_column, delimiter="," if form == ".csv" else "\t")
    except DamagedFileError as damage:
        yield damage.line, "", damage.reason


def decode_line(line: bytes) -> tuple[str, str]:
    r"""Decode a line of UTF-8 without its ``\n`` or ``\r\n``; return the text and, if that fails, the problem."""
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"), ""
    except UnicodeDecodeError as error:
        return "", f"not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})"


def check_text(value: object) -> tuple[str, str]:
    """Check that a value is a text; null counts as an empty one. Return the text and the problem."""
    if isinstance(value, str):
        return value, ""
    return "", "" if value is None else f"the text is not a string but a {type(value).__name__}"


def records_from_rows(where: object, rows: Iterable[tuple[int, object]], text_column: str) -> Iterator[Record]:
    """Take the text out of rows that each bring their own keys (JSON lines, rows of the hub).

    Args:
        where: The name to use in messages.
        rows: Line numbers with the parsed value, or with an exception that says why there is none.
        text_column: The key that holds the text.

    Raises:
        UserError: If no row has the text column.
    """
    found = False
    missing = 0
    columns: dict[str, None] = {}
    for line, row in rows:
        if isinstance(row, Exception):
            yield line, "", str(row)
        elif row is _BLANK:
            yield line, "", ""
        elif not isinstance(row, dict):
            yield line, "", f"not an object but a {type(row).__name__}"
        elif text_column in row:
            found = True
            yield line, *check_text(row[text_column])
        else:
            missing += 1
            if not found:
                columns.update(dict.fromkeys(islice(map(str, row), 50)))
                if missing >= MAX_ROWS_WITHOUT_COLUMN:
                    break
            yield line, "", f"no '{text_column}'"
    if missing and not found:
        raise missing_column_error(where, text_column, islice(columns, 50))


def _read_lines(path: Path) -> Iterator[Record]:
    for number, line in read_numbered_lines(path):
        yield number, *decode_line(line)


def _read_blocks(path: Path) -> Iterator[Record]:
    """Give each run of lines that are not blank as one document; a block with an undecodable line is unusable."""
    start = 0
    block: list[str] = []
    problem = (0, "")
    for number, line in read_numbered_lines(path):
        if line.strip():
            start = start or number
            text, trouble = decode_line(line)
            block.append(text)
            if trouble and not problem[1]:
                problem = (number, trouble)
        elif start:
            yield (problem[0], "", problem[1]) if problem[1] else (start, "\n".join(block), "")
            start, block, problem = 0, [], (0, "")
    if start:
        yield (problem[0], "", problem[1]) if problem[1] else (start, "\n".join(block), "")


def _read_jsonl(path: Path, text_column: str) -> Iterator[Record]:
    def rows() -> Iterator[tuple[int, object]]:
        for number, line in read_numbered_lines(path):
            text, problem = decode_line(line)
            if problem:
                yield number, ValueError(problem)
            elif not text.strip():
                yield number, _BLANK
            else:
                try:
                    yield number, _parse_json_line(text, text_column)
                except (ValueError, RecursionError) as error:
                    yield number, ValueError(f"not JSON ({error})")

    return records_from_rows(path, rows(), text_column)


def _parse_json_line(line: str, text_column: str) -> object:
    """Parse a line of JSON.

    Raises:
        ValueError: If it is broken, or an object in it has the text column twice: nobody could say which is meant.
    """
    if line.count(f'"{text_column}"') < 2:
        return json.loads(line)

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if sum(name == text_column for name, _ in pairs) > 1:
            raise ValueError(f"the key '{text_column}' stands twice in one object")
        return dict(pairs)

    return json.loads(line, object_pairs_hook=once)


def _read_parquet(path: Path, text_column: str) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if text_column not in columns:
                raise missing_column_error(path, text_column, columns)
            if columns.count(text_column) > 1:
                raise duplicate_column_error(path, text_column)
            for batch in file.iter_batches(batch_size=1024, columns=[text_column]):
                for value in batch.column(0):
                    row += 1
                    try:
                        yield row, *check_text(value.as_py())
                    except UnicodeDecodeError:
                        yield row, "", "not UTF-8"
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last for the name of a column
        raise DamagedFileError(
            row + 1, f"the file is damaged or not parquet ({str(error).splitlines()[0]})"
        ) from error
