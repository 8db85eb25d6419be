"""Readers that turn a file of each format, plain or compressed, into a stream of records.

A record is ``(line, text, problem)``: the line where it starts (the row in a parquet file), from 1; its text, empty
for a blank record; and why it cannot be used, empty if it can. A bad record never ends the stream. An error that makes
the whole file unusable, such as a missing text column, raises ``UserError``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import ZipFile

from acclimate.base.errors import DamagedFileError, UserError, first_line, printable, warn_once
from acclimate.data.conversion import convert_document, strip_markdown
from acclimate.data.csv_reader import (
    DEFAULT_COLUMN,
    WHOLE_ROW,
    check_names,
    find_columns,
    infer_column,
    join_cells,
    missing_column_error,
    name_parts,
    read_csv,
    split_columns,
    write_row,
)
from acclimate.data.opening import (
    COLUMNAR,
    CONVERTED,
    EXCEL,
    MAX_LINE_BYTES,
    check_extra,
    decode_line,
    detect_format,
    open_bytes,
    read_numbered_lines,
)

if TYPE_CHECKING:
    import pyarrow

Record = tuple[int, str, str]
TxtLayout = Literal["auto", "line", "block"]

# Reading stops if none of the first rows has the text column: a mistyped name should not cost a pass over many
# gigabytes.
MAX_ROWS_WITHOUT_COLUMN = 10_000
# If blocks are longer than this on average, the file is taken to have one document per line and a stray blank line.
MAX_MEAN_BLOCK_LINES = 50

MAX_SHEET_ROWS = 1_048_576
"""Rows that a sheet of Excel has at most."""
MAX_BATCH = 4 * 2**30
"""Bytes of text in a batch of rows: a few bytes of a file may stand for as many copies of a text."""
MAX_WORKBOOK = 512 * 2**20
"""Bytes that an Excel file may unpack into, all of whose rows are held in memory."""
MAX_LISTED_KEYS = 12

BLANK = object()
"""Takes the place of the row of a blank line."""


def list_unused(keys: Mapping[str, int]) -> str:
    """Return keys that are not used, each with the number of records that have it, for a message."""
    listed = [f"'{printable(str(key)[:40])}' ({count:,})" for key, count in list(keys.items())[:MAX_LISTED_KEYS]]
    more = [f"{len(keys) - len(listed)} more"] if len(keys) > len(listed) else []
    return ", ".join([*listed, *more])


class LostRest(str):
    """Why the rest of a file cannot be read, as the problem of its last record."""


def detect_txt_layout(path: Path, encoding: str | None = None) -> Literal["line", "block"]:
    """Decide from the first 1000 lines whether a text file has one document per line or per block.

    Blocks are separated by blank lines. The file is read as blocks if there are at least two of them with at most 50
    lines on average. Blank lines at the start or the end do not count.
    """
    blocks = filled = 0
    inside = False
    try:
        for _, line in islice(read_numbered_lines(path, encoding), 1000):
            has_text = bool(line.strip())
            filled += has_text
            blocks += has_text and not inside
            inside = has_text
    except DamagedFileError:
        pass  # the reader will report it
    return "block" if blocks > 1 and filled <= MAX_MEAN_BLOCK_LINES * blocks else "line"


def read_records(
    path: Path, text_column: str = DEFAULT_COLUMN, txt: TxtLayout = "auto", encoding: str | None = None
) -> Iterator[Record]:
    """Stream the records of a file.

    Args:
        path: A file whose name ends in one of ``SUFFIXES``.
        text_column: The key or column that holds the text in tables and JSON; see
            :func:`acclimate.data.csv_reader.infer_column`.
        txt: Layout of ``.txt`` files: one document per line, one per block, or as ``detect_txt_layout`` decides. All
            other files that are not tables are one document.
        encoding: Encoding of a text format if that is not UTF-8.

    Raises:
        UserError: If the file cannot be opened, needs an extra, or has no such column.
    """
    form = detect_format(path)
    check_extra(path)
    try:
        if form == ".txt":
            layout = detect_txt_layout(path, encoding) if txt == "auto" else txt
            yield from _read_lines(path, encoding) if layout == "line" else _read_blocks(path, encoding)
        elif form == ".md":
            yield 1, strip_markdown(read_text(path, encoding)), ""
        elif form in CONVERTED:
            yield 1, *convert_document(path, encoding)
        elif form in (".jsonl", ".json"):
            rows = read_json_rows(path, partial(_parse_json, text_column=text_column), encoding)
            yield from records_from_rows(path, rows, text_column)
        elif form == EXCEL:
            yield from records_from_rows(path, read_excel_rows(path), text_column)
        elif form in COLUMNAR:
            yield from _read_column(path, text_column)
        else:
            delimiter = "," if form == ".csv" else "\t"
            yield from read_csv(read_numbered_lines(path, encoding), path, text_column, delimiter)
    except DamagedFileError as damage:
        yield damage.line, "", LostRest(damage.reason)


def check_text(value: object) -> tuple[str, str]:
    """Return a value as text, and the problem if it is not a string; null counts as empty text."""
    if isinstance(value, str):
        return value, ""
    return "", "" if value is None else f"the text is not a string but a {type(value).__name__}"


def records_from_rows(where: object, rows: Iterable[tuple[int, object]], text_column: str) -> Iterator[Record]:
    """Extract the text of rows that each have their own keys, such as JSON lines.

    Args:
        where: Name of the source, for messages.
        rows: Line numbers with the parsed rows; an exception instead of a row says why it could not be parsed.
        text_column: The key that holds the text.

    Raises:
        UserError: If no row has the text column, or one of several.
    """
    found = False
    missing = 0
    columns: dict[str, None] = {}
    chosen = ""
    for line, row in _with_text_column(where, rows, text_column):
        if isinstance(row, dict) and not chosen:
            text_column = chosen = infer_column(where, text_column, row) or text_column
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


def _with_text_column(
    where: object, rows: Iterable[tuple[int, object]], text_column: str
) -> Iterable[tuple[int, object]]:
    """Return rows with their text in one column, which may be that of whole rows or of several columns."""
    if text_column == WHOLE_ROW:
        return ((line, {WHOLE_ROW: write_row(row)} if isinstance(row, dict) else row) for line, row in rows)
    return _join_rows(where, rows, text_column) if "," in text_column else rows


def _join_rows(where: object, rows: Iterable[tuple[int, object]], text_column: str) -> Iterator[tuple[int, object]]:
    """Yield rows in which several columns, as in ``subject,body``, are one; a row may lack some of them.

    Raises:
        UserError: If no row has one of the columns.
    """
    parts = name_parts(text_column)
    seen: dict[str, None] = {}
    for line, row in rows:
        if isinstance(row, dict):
            row = {str(name).strip(): value for name, value in row.items()}
            seen.update(dict.fromkeys(row if text_column not in row else parts))
            if text_column not in row and (cells := [row.pop(part) for part in parts if part in row]):
                row[text_column] = join_cells(cells)
        yield line, row
    if {*parts} & seen.keys() and (unseen := [part for part in parts if part not in seen]):
        raise missing_column_error(where, unseen[0], islice(seen, 50))


def _read_lines(path: Path, encoding: str | None) -> Iterator[Record]:
    for number, line in read_numbered_lines(path, encoding):
        yield number, *decode_line(line)


def _read_blocks(path: Path, encoding: str | None) -> Iterator[Record]:
    """Yield each run of non-blank lines as one document; an undecodable line makes its block unusable."""
    start = 0
    block: list[str] = []
    first_problem = (0, "")
    for number, line in read_numbered_lines(path, encoding):
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


def read_json_rows(
    path: Path, parse: Callable[[str], object] = json.loads, encoding: str | None = None
) -> Iterator[tuple[int, object]]:
    """Yield the numbered rows of JSON lines, or of a ``.json`` file that holds one array or table.

    Args:
        path: A ``.jsonl`` or ``.json`` file, also compressed.
        parse: Parses JSON, and raises a ``ValueError`` if it is invalid.
        encoding: Encoding of the file if that is not UTF-8.

    Yields:
        Line numbers (in an array, row numbers) with the rows. A row can be any JSON value; ``BLANK`` for a blank line;
        or an exception that says why it could not be parsed.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the rest of the file cannot be read.
    """
    if detect_format(path) == ".json" and not _is_json_lines(path, encoding):
        yield from enumerate(_read_json_array(path, parse, encoding), start=1)
        return
    for number, line in read_numbered_lines(path, encoding):
        text, problem = decode_line(line)
        row: object = BLANK
        if problem:
            row = ValueError(problem)
        elif text.strip():
            try:
                row = parse(text)
            except json.JSONDecodeError as error:
                row = ValueError(f"not JSON ({error})")
            except RecursionError:
                row = ValueError("JSON that is nested too deeply to be read")
            except ValueError as error:
                row = error
        yield number, row


def _is_json_lines(path: Path, encoding: str | None) -> bool:
    """Return whether one of the first two lines is a whole object, and the file is neither an array nor one object."""
    filled = (line for _, line in read_numbered_lines(path, encoding) if line.strip())
    first, second = next(filled, b""), next(filled, b"")
    if not first.lstrip().startswith(b"{"):
        return not first.lstrip().startswith(b"[")
    for line in (first, second):
        with suppress(ValueError, RecursionError):
            return isinstance(json.loads(line), dict) and bool(second)
    return False


def holds_rows(path: Path, column: str, encoding: str | None = None) -> bool:
    """Return whether a JSON file has rows with a column; True for a damaged file, which its reader reports."""
    try:
        row = next((row for _, row in read_json_rows(path, encoding=encoding) if row is not BLANK), None)
    except DamagedFileError:
        return True
    names = {WHOLE_ROW, *(str(name).strip() for name in row)} if isinstance(row, dict) else set[str]()
    return isinstance(row, Exception) or set(split_columns(column, names)) <= names


def read_json(path: Path, parse: Callable[[str], object] = json.loads, encoding: str | None = None) -> Any:
    """Read a file that holds one JSON value.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If it is too large, cannot be decoded or is not JSON.
    """
    try:
        return parse(read_text(path, encoding))
    except RecursionError as error:
        raise DamagedFileError(1, "JSON that is nested too deeply to be read") from error
    except ValueError as error:
        raise DamagedFileError(getattr(error, "lineno", 1), f"not JSON ({error})") from error


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read a whole file of text.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If it is too large or cannot be decoded.
    """
    data = bytearray()
    for number, line in read_numbered_lines(path, encoding):
        data += line
        if len(data) > MAX_LINE_BYTES:
            kind = "JSON" if detect_format(path) == ".json" else "text"
            raise DamagedFileError(
                number, f"{kind} of more than {MAX_LINE_BYTES:,} bytes; save it as JSON lines (.jsonl)"
            )
        if problem := decode_line(line)[1]:
            raise DamagedFileError(number, problem)
    return data.decode("utf-8")


def _read_json_array(path: Path, parse: Callable[[str], object], encoding: str | None) -> list[Any]:
    """Return the rows of an array, or of a table in one of the orientations of pandas; any other object is one row."""
    value = read_json(path, parse, encoding)
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    data, names, marked = value.get("data"), value.get("columns"), value.get("annotations")
    if isinstance(marked, list) and set(value) <= {"annotations", "classes"}:  # an export of NER Annotator
        return [row for row in marked if row is not None]
    if isinstance(data, list) and isinstance(names, list):
        return [dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in data]
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return data
    columns = list(value.values())
    if columns and all(isinstance(cells, dict) for cells in columns) and not any(name.isdigit() for name in value):
        if any(cells.keys() != columns[0].keys() for cells in columns):
            return [value]
        columns = [[cells[row] for row in columns[0]] for cells in columns]
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
    read = {text_column, *name_parts(text_column)}
    if all(text.count(f'"{name}"') < 2 for name in read):
        return json.loads(text)

    def check_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        if double := next((name for name in read if names.count(name) > 1), None):
            raise ValueError(f"the key '{double}' is duplicated in one object")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=check_unique)


def _report_unnamed(path: Path, names: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Say how many rows of a sheet have cells in columns without a name."""
    cells = (zip_longest(names, row, fillvalue="") for _, row in rows)
    if count := sum(any(cell.strip() and not name for name, cell in row) for row in cells):
        warn_once(f"'{path}': {count:,} rows have cells in columns without a name, which are not read.")


def read_excel_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the numbered rows of the first sheet, all cells as text, as in CSV; blank rows are left out.

    Raises:
        UserError: If the file or its header is invalid.
    """
    from openpyxl import load_workbook

    try:
        file = open_bytes(path)
        if file.read(4) == b"\xd0\xcf\x11\xe0":  # the container of files with a password, and of .xls
            raise UserError(f"'{path}' is encrypted or of an older format; save it as .xlsx without a password.")
        if (size := sum(part.file_size for part in ZipFile(file).infolist())) > MAX_WORKBOOK:
            limit = MAX_WORKBOOK // 2**20
            raise UserError(f"'{path}' unpacks into {size / 2**20:,.0f} MB; the limit is {limit}: use CSV.")
        book = load_workbook(file, read_only=True, data_only=True)
        first, *others = book.worksheets
        first.reset_dimensions()  # what some programs write is wrong, and rows outside of it would be lost
        rows = []
        for number, row in enumerate(first.iter_rows(values_only=True), 1):
            if number > MAX_SHEET_ROWS:  # gaps between the numbers of rows are filled with empty ones
                raise UserError(f"'{path}' has more than {MAX_SHEET_ROWS:,} rows, the limit of Excel: use CSV.")
            cells = ["" if cell is None else str(cell) for cell in row]
            if any(cell.strip() for cell in cells):
                rows.append((number, cells))
    except UserError:
        raise
    except Exception as error:  # a damaged file raises errors of zipfile, zlib and XML, among others
        raise UserError(f"'{path}' is not an Excel file ({first_line(error)}).") from error
    if others:
        warn_once(f"'{path}': only the first sheet, '{first.title}', is read.")
    numbered = iter(rows)
    _, names = next(numbered, (0, []))
    names = check_names(path, [name.strip() for name in names])
    _report_unnamed(path, names, rows)
    for number, row in numbered:
        yield number, {name: cell for name, cell in zip_longest(names, row[: len(names)], fillvalue="") if name}


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

    try:
        with open_bytes(path) as data:
            if detect_format(path) == ".parquet":
                schema = pyarrow.parquet.read_schema(data)
                data.seek(0)
                texts = {
                    one.name: one.type for one in schema if one.type in (pyarrow.string(), pyarrow.large_string())
                }
                with pyarrow.parquet.ParquetFile(data, read_dictionary=[*texts]) as file:
                    for batch in file.iter_batches(batch_size=1024, columns=select(schema)):
                        _check_size(path, batch)
                        kept = [one.with_type(texts.get(one.name, one.type)) for one in batch.schema]
                        yield schema, batch.cast(pyarrow.schema(kept))
                return
            magic = data.read(6)
            data.seek(0)
            source = pyarrow.ipc.open_file(data) if magic == b"ARROW1" else pyarrow.ipc.open_stream(data)
            columns = select(source.schema)
            indices = range(source.num_record_batches) if magic == b"ARROW1" else None
            for batch in source if indices is None else map(source.get_batch, indices):
                batch.validate(full=True)  # damaged offsets would be read outside of the buffers
                _check_size(path, batch)
                yield source.schema, batch if columns is None else batch.select(columns)
    except MemoryError as error:  # a damaged size
        raise OSError("a part of it asks for more memory than there is") from error


def _check_size(path: Path, batch: pyarrow.RecordBatch) -> None:
    import pyarrow
    import pyarrow.compute

    size = 0
    for column in batch.columns:
        values = column.dictionary if isinstance(column, pyarrow.DictionaryArray) else None
        if isinstance(values, pyarrow.StringArray | pyarrow.LargeStringArray):
            lengths = pyarrow.compute.binary_length(values).cast(pyarrow.int64())
            size += pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0
    if size > MAX_BATCH:
        raise UserError(
            f"'{path}' repeats texts that take {size / 2**30:.1f} GB for {len(batch):,} rows; the limit is "
            f"{MAX_BATCH / 2**30:.1f}: leave out the longest texts."
        )


def _read_column(path: Path, text_column: str) -> Iterator[Record]:
    import pyarrow

    whole = text_column == WHOLE_ROW
    names: list[str] = []

    def select(schema: pyarrow.Schema) -> list[str]:
        names[:] = schema.names
        names[:] = names if whole else [names[place] for place in find_columns(path, text_column, names)]
        return names

    row = 0
    try:
        for _, batch in read_batches(path, select):
            for value in batch.column(0) if len(names) == 1 and not whole else batch.to_struct_array():
                row += 1
                try:
                    found = value.as_py()
                    cells = [found[name] for name in names] if isinstance(found, dict) and len(names) > 1 else [found]
                    yield row, *((write_row(found), "") if whole else check_text(join_cells(cells)))
                except UnicodeDecodeError:
                    yield row, "", "not UTF-8"
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:  # names may not be UTF-8
        is_limit = isinstance(error, pyarrow.ArrowNotImplementedError) or "encrypt" in str(error).lower()
        what = "uses what pyarrow cannot read" if is_limit else f"is damaged or not {path.suffix[1:]}"
        raise DamagedFileError(row + 1, f"the file {what} ({first_line(error)})") from error
