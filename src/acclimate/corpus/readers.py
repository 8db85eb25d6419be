"""Readers that turn a file of each format, plain or compressed, into a stream of records.

A record is ``(line, text, problem)``: the line where it starts (the row in a parquet file), from 1; its text, empty
for a blank record; and why it cannot be used, empty if it can. A bad record never ends the stream. An error that makes
the whole file unusable, such as a missing text column, raises ``UserError``.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from acclimate.corpus.csv_reader import find_column, missing_column_error, read_csv
from acclimate.errors import DamagedFileError, UserError, first_line
from acclimate.files import check_regular_file

if TYPE_CHECKING:
    import pyarrow

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

FORMATS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
COLUMNAR = (".parquet", ".arrow")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": ""}
"""Endings of compressed files, with the codecs of pyarrow."""
SUFFIXES = (*FORMATS, *(form + ending for form in FORMATS if form not in COLUMNAR for ending in COMPRESSIONS))
FORMATS_DESCRIPTION = f"{', '.join(FORMATS)} (the text formats also compressed as {', '.join(COMPRESSIONS)})"

MIN_DETECTION_BYTES = 16
"""Files that are shorter and have no byte order mark are read as UTF-8."""
DAMAGE_BYTES = 1 << 12
"""Maximum bytes of text before the damage that are lost, since pyarrow fails on a whole block."""
MAX_LINE_BYTES = 1 << 28
"""A longer line is unlikely to be a document and would only fill memory. Also the limit of a JSON array."""

# Reading stops if none of the first rows has the text column: a mistyped name should not cost a pass over many
# gigabytes.
MAX_ROWS_WITHOUT_COLUMN = 10_000
# If blocks are longer than this on average, the file is taken to have one document per line and a stray blank line.
MAX_MEAN_BLOCK_LINES = 50

BLANK = object()
"""Takes the place of the row of a blank line."""


def detect_format(path: Path) -> str | None:
    """Return the format (``".txt"``, ``".jsonl"``, ...) by the name of a file; None if it is unknown."""
    name = path.name.lower()
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    return suffix and f".{suffix.split('.')[1]}"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in one of ``COMPRESSIONS``.

    Reading raises ``OSError``, ``EOFError`` or ``LZMAError`` if the compressed data are damaged or end too early. The
    readers of ``zstandard`` and ``fsspec`` accept a truncated file as complete, so pyarrow's is used.

    Raises:
        UserError: If the file cannot be opened, or is a pipe or a device.
    """
    check_regular_file(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.") from error
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        return file
    if not compression:
        return lzma.open(file)
    import pyarrow

    stream = pyarrow.CompressedInputStream(file, compression)
    return cast("IO[bytes]", io.BufferedReader(stream, buffer_size=DAMAGE_BYTES))


def detect_wide_encoding(head: bytes) -> str:
    """Return the name of the encoding if the start of a file is UTF-16 or UTF-32; else an empty string.

    Without a byte order mark, every second byte is below 0x20 in the UTF-16 of most scripts, and 0 in that of spaces
    and line ends. As UTF-8 such a file would often be valid, with a control character after every letter.
    """
    if marked := next((name for mark, name in WIDE_ENCODING_BOMS.items() if head.startswith(mark)), ""):
        return marked
    if len(head) < MIN_DETECTION_BYTES or 0 not in head:
        return ""
    highest = [max(head[place::4]) for place in range(4)]
    if highest[3] == 0 and highest[2] <= 0x10 < highest[0]:
        return "UTF-32LE"
    if highest[0] == 0 and highest[1] <= 0x10 < highest[3]:
        return "UTF-32BE"
    low = [sum(byte < 0x20 for byte in head[place::2]) / len(head[place::2]) for place in (0, 1)]
    if max(low) < 0.7 or max(low) - min(low) < 0.2 or 0 not in head[low.index(max(low)) :: 2]:
        return ""
    return "UTF-16LE" if low[1] > low[0] else "UTF-16BE"


def read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield each line with its number, from 1, and its line end; a byte order mark is removed.

    Lines end at ``\n`` only: the other line boundaries of ``str.splitlines`` occur inside documents. In a file without
    any ``\n`` they end at ``\r``.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the file is damaged, truncated or not compressed as its name says, has a line that is too
            long, or is encoded in UTF-16 or UTF-32.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            if wide := detect_wide_encoding(file.peek()[:DAMAGE_BYTES]):  # type: ignore[attr-defined]
                raise DamagedFileError(
                    1, f"{wide}, not UTF-8; convert the file, for example with 'iconv -f {wide} -t UTF-8'"
                )
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(
                        number, f"the line has more than {MAX_LINE_BYTES:,} bytes; the rest of the file is not read"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    if b"\r" in line.removesuffix(b"\r") and not line.endswith(b"\n"):
                        yield from enumerate(line.replace(b"\r", b"\n").splitlines(keepends=True), start=1)
                        return
                yield number, line
        except (OSError, EOFError, lzma.LZMAError) as error:
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
        elif form in (".jsonl", ".json"):
            rows = read_json_rows(path, partial(_parse_json, text_column=text_column))
            yield from records_from_rows(path, rows, text_column)
        elif form in COLUMNAR:
            yield from _read_column(path, text_column)
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
        where = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        return "", f"not UTF-8 ({where}); a file of Windows needs 'iconv -f CP1252 -t UTF-8'"


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
        elif row is BLANK:
            yield line, "", ""
        elif not isinstance(row, dict):
            yield line, "", f"not an object but a {type(row).__name__}"
        elif text_column in row or text_column in (row := {str(name).strip(): value for name, value in row.items()}):
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


def read_json_rows(path: Path, parse: Callable[[str], object] = json.loads) -> Iterator[tuple[int, object]]:
    """Yield the numbered rows of JSON lines, or of a ``.json`` file that holds one array or table.

    Args:
        path: A ``.jsonl`` or ``.json`` file, also compressed.
        parse: Parses JSON, and raises a ``ValueError`` if it is invalid.

    Yields:
        Line numbers (in an array, row numbers) with the rows. A row can be any JSON value; ``BLANK`` for a blank line;
        or an exception that says why it could not be parsed.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the rest of the file cannot be read.
    """
    if detect_format(path) == ".json" and not _is_json_lines(path):
        yield from enumerate(_read_json_array(path, parse), start=1)
        return
    for number, line in read_numbered_lines(path):
        text, problem = decode_line(line)
        row: object = BLANK
        if problem:
            row = ValueError(problem)
        elif text.strip():
            try:
                row = parse(text)
            except (json.JSONDecodeError, RecursionError) as error:
                row = ValueError(f"not JSON ({error})")
            except ValueError as error:
                row = error
        yield number, row


def _is_json_lines(path: Path) -> bool:
    """Return whether one of the first two lines is a whole object, and the file is neither an array nor one object."""
    filled = (line for _, line in read_numbered_lines(path) if line.strip())
    first, second = next(filled, b""), next(filled, b"")
    if not first.lstrip().startswith(b"{"):
        return not first.lstrip().startswith(b"[")
    for line in (first, second):
        with suppress(ValueError, RecursionError):
            return isinstance(json.loads(line), dict) and bool(second)
    return False


def holds_rows(path: Path, column: str) -> bool:
    """Return whether a JSON file has rows with a column; True for a damaged file, which its reader reports."""
    try:
        row = next((row for _, row in read_json_rows(path) if row is not BLANK), None)
    except DamagedFileError:
        return True
    return isinstance(row, Exception) or (isinstance(row, dict) and column in {str(name).strip() for name in row})


def read_json(path: Path, parse: Callable[[str], object] = json.loads) -> Any:
    """Read a file that holds one JSON value.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If it is too large, not UTF-8 or not JSON.
    """
    data = bytearray()
    for number, line in read_numbered_lines(path):
        data += line
        if len(data) > MAX_LINE_BYTES:
            raise DamagedFileError(
                number, f"JSON of more than {MAX_LINE_BYTES:,} bytes; save it as JSON lines (.jsonl)"
            )
    text, problem = decode_line(bytes(data))
    if problem:
        raise DamagedFileError(1, problem)
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(getattr(error, "lineno", 1), f"not JSON ({error})") from error


def _read_json_array(path: Path, parse: Callable[[str], object]) -> list[Any]:
    """Return the rows of an array, or of a table in one of the orientations of pandas; any other object is one row."""
    value = read_json(path, parse)
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    data, names = value.get("data"), value.get("columns")
    if isinstance(data, list) and isinstance(names, list):
        return [dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in data]
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return data
    columns = [list(cells.values()) if isinstance(cells, dict) else cells for cells in value.values()]
    if all(name.isdigit() for name in value):  # {"0": {"text": ...}, "1": {"text": ...}}
        return list(value.values())
    if all(isinstance(cells, list) and len(cells) == len(columns[0]) for cells in columns):
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return [value]


def _parse_json(text: str, text_column: str) -> object:
    """Parse JSON.

    Raises:
        ValueError: If it is invalid, or if an object has the text column twice, which is ambiguous.
    """
    if text.count(f'"{text_column}"') < 2:
        return json.loads(text)

    def check_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if sum(name == text_column for name, _ in pairs) > 1:
            raise ValueError(f"the key '{text_column}' is duplicated in one object")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=check_unique)


def read_batches(
    path: Path, select: Callable[[pyarrow.Schema], list[str] | None]
) -> Iterator[tuple[pyarrow.Schema, pyarrow.RecordBatch]]:
    """Yield the schema and the batches of a ``.parquet`` or ``.arrow`` file, as ``datasets`` and pandas write them.

    Args:
        path: The file.
        select: Gets the schema and returns the columns to read; None reads all.

    Raises:
        UserError: If the file cannot be opened.
        pyarrow.ArrowException, OSError, UnicodeDecodeError: If the file is damaged.
    """
    import pyarrow.ipc
    import pyarrow.parquet

    with open_bytes(path) as data:
        if detect_format(path) == ".parquet":
            with pyarrow.parquet.ParquetFile(data) as file:
                schema = file.schema_arrow
                for batch in file.iter_batches(batch_size=1024, columns=select(schema)):
                    yield schema, batch
            return
        magic = data.read(6)
        data.seek(0)
        source = pyarrow.ipc.open_file(data) if magic == b"ARROW1" else pyarrow.ipc.open_stream(data)
        columns = select(source.schema)
        indices = range(source.num_record_batches) if magic == b"ARROW1" else None
        for batch in source if indices is None else map(source.get_batch, indices):
            batch.validate(full=True)  # damaged offsets would be read outside of the buffers
            yield source.schema, batch if columns is None else batch.select(columns)


def _read_column(path: Path, text_column: str) -> Iterator[Record]:
    import pyarrow

    def select(schema: pyarrow.Schema) -> list[str]:
        return [schema.names[find_column(path, text_column, schema.names)]]

    row = 0
    try:
        for _, batch in read_batches(path, select):
            for value in batch.column(0):
                row += 1
                try:
                    yield row, *check_text(value.as_py())
                except UnicodeDecodeError:
                    yield row, "", "not UTF-8"
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:  # names may not be UTF-8
        raise DamagedFileError(
            row + 1, f"the file is damaged or not {path.suffix[1:]} ({first_line(error)})"
        ) from error
