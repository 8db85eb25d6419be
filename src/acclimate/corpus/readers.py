"""Readers that turn a file of each format, plain or compressed, into a stream of records.

A record is ``(line, text, problem)``: the line where it starts (the row in a parquet file), from 1; its text, empty
for a blank record; and why it cannot be used, empty if it can. A bad record never ends the stream. An error that makes
the whole file unusable, such as a missing text column, raises ``UserError``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Literal, cast

from acclimate.corpus.csv_reader import duplicate_column_error, missing_column_error, read_csv
from acclimate.errors import DamagedFileError, UserError

Record = tuple[int, str, str]
TxtLayout = Literal["auto", "line", "block"]

BOM = b"\xef\xbb\xbf"
WIDE_ENCODING_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of encodings other than UTF-8."""

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
SUFFIXES = (
    *FORMATS,
    *(form + compression for form in FORMATS if form != ".parquet" for compression in COMPRESSIONS),
)
FORMATS_DESCRIPTION = f"{', '.join(FORMATS)} (all but .parquet also compressed as .gz or .zst)"

DAMAGE_BYTES = 1 << 12
"""Maximum bytes of text before the damage that are lost, since pyarrow fails on a whole block."""
MAX_LINE_BYTES = 1 << 28
"""A longer line is unlikely to be a document and would only fill memory."""

# Reading stops if none of the first rows has the text column: a mistyped name should not cost a pass over many
# gigabytes.
MAX_ROWS_WITHOUT_COLUMN = 10_000
# If blocks are longer than this on average, the file is taken to have one document per line and a stray blank line.
MAX_MEAN_BLOCK_LINES = 50

_BLANK = object()


def detect_format(path: Path) -> str | None:
    """Return the format (``".txt"``, ``".jsonl"``, ...) by the name of a file; None if it is unknown."""
    name = path.name.lower()
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    return suffix and suffix.removesuffix(".gz").removesuffix(".zst")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in ``.gz`` or ``.zst``.

    Reading raises ``OSError`` if the compressed data are damaged or end too early. The readers of ``zstandard`` and
    ``fsspec`` accept a truncated file as complete, so pyarrow's is used.

    Raises:
        UserError: If the file cannot be opened.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.") from error
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        return file
    import pyarrow

    stream = pyarrow.CompressedInputStream(file, compression)
    return cast("IO[bytes]", io.BufferedReader(stream, buffer_size=DAMAGE_BYTES))


def read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield each line with its number, from 1, and its line end; a byte order mark is removed.

    Lines end at ``\n`` only: the other line boundaries of ``str.splitlines`` occur inside documents.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the file is damaged, truncated or not compressed as its name says, has a line that is too
            long, or is encoded in UTF-16 or UTF-32.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(
                        number, f"the line has more than {MAX_LINE_BYTES:,} bytes; the rest of the file is not read"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    if wide := next((name for mark, name in WIDE_ENCODING_BOMS.items() if line.startswith(mark)), ""):
                        raise DamagedFileError(
                            1, f"{wide}, not UTF-8; convert the file, for example with 'iconv -f {wide} -t UTF-8'"
                        )
                yield number, line
        except OSError as error:
            raise DamagedFileError(number + 1, f"the file is damaged or cut off from here on ({error})") from error


def detect_txt_layout(path: Path) -> Literal["line", "block"]:
    """Decide from the first 1000 lines whether a text file has one document per line or per block.

    Blocks are separated by blank lines. The file is read as blocks if there are at least two of them with at most 50
    lines on average. Blank lines at the start or the end do not count.
    """
    blocks = filled = 0
    inside = False
    try:
        for _, line in islice(read_numbered_lines(path), 1000):
            has_text = bool(line.strip())
            filled += has_text
            blocks += has_text and not inside
            inside = has_text
    except DamagedFileError:
        pass  # the reader will report it
    return "block" if blocks > 1 and filled <= MAX_MEAN_BLOCK_LINES * blocks else "line"


def read_records(path: Path, text_column: str = "text", txt: TxtLayout = "auto") -> Iterator[Record]:
    """Stream the records of a file.

    Args:
        path: A file whose name ends in one of ``SUFFIXES``.
        text_column: The key or column that holds the text; not used for ``.txt``.
        txt: Layout of ``.txt`` files: one document per line, one per block, or as ``detect_txt_layout`` decides.

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
            delimiter = "," if form == ".csv" else "\t"
            yield from read_csv(read_numbered_lines(path), path, text_column, delimiter)
    except DamagedFileError as damage:
        yield damage.line, "", damage.reason


def decode_line(line: bytes) -> tuple[str, str]:
    r"""Decode a line of UTF-8 without its ``\n`` or ``\r\n``; return the text, and the problem if there is one."""
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"), ""
    except UnicodeDecodeError as error:
        return "", f"not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})"


def check_text(value: object) -> tuple[str, str]:
    """Return a value as text, and the problem if it is not a string; null counts as empty text."""
    if isinstance(value, str):
        return value, ""
    return "", "" if value is None else f"the text is not a string but a {type(value).__name__}"


def records_from_rows(where: object, rows: Iterable[tuple[int, object]], text_column: str) -> Iterator[Record]:
    """Extract the text of rows that each have their own keys, such as JSON lines.

    Args:
        where: Name of the source, for messages.
        rows: Line numbers with the parsed rows; an exception in place of a row says why it could not be parsed.
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
    """Yield each run of non-blank lines as one document; an undecodable line makes its block unusable."""
    start = 0
    block: list[str] = []
    first_problem = (0, "")
    for number, line in read_numbered_lines(path):
        if line.strip():
            start = start or number
            text, problem = decode_line(line)
            block.append(text)
            if problem and not first_problem[1]:
                first_problem = (number, problem)
        elif start:
            yield _block_record(start, block, first_problem)
            start, block, first_problem = 0, [], (0, "")
    if start:
        yield _block_record(start, block, first_problem)


def _block_record(start: int, block: list[str], problem: tuple[int, str]) -> Record:
    return (problem[0], "", problem[1]) if problem[1] else (start, "\n".join(block), "")


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
        ValueError: If it is invalid, or if an object has the text column twice, which is ambiguous.
    """
    if line.count(f'"{text_column}"') < 2:
        return json.loads(line)

    def check_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if sum(name == text_column for name, _ in pairs) > 1:
            raise ValueError(f"the key '{text_column}' is duplicated in one object")
        return dict(pairs)

    return json.loads(line, object_pairs_hook=check_unique)


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
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # a column name may not be UTF-8
        raise DamagedFileError(
            row + 1, f"the file is damaged or not parquet ({str(error).splitlines()[0]})"
        ) from error
