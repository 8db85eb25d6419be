"""Writing rows as a table: CSV, TSV, JSON, JSON lines, Parquet or Excel, by the ending of the file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import atomic_file
from acclimate.data.opening import check_extra

Rows = Sequence[Mapping[str, Any]]


def check_table_name(path: str | Path) -> None:
    """Check that the ending of a file is one of a table that can be written.

    Raises:
        UserError: If it is not, or the library for it is missing.
    """
    if Path(path).suffix.lower() not in WRITERS:
        raise UserError(f"'{path}' must end in {', '.join(WRITERS)}, which says how it is written.")
    check_extra(Path(path))


def write_rows(path: str | Path, rows: Rows) -> None:
    """Write rows atomically, in the format of the ending; columns are in the order in which they occur first.

    Lists and dictionaries are JSON in CSV, TSV and Excel. In Parquet a column with values of different types is text.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_file(path) as file:
        WRITERS[Path(path).suffix.lower()](file, names, rows)


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | tuple | dict) else value


def _write_delimited(delimiter: str) -> Callable[[Any, list[str], Rows], None]:
    def write(file: Any, names: list[str], rows: Rows) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        writer = csv.writer(text, delimiter=delimiter)  # lines end as in RFC 4180, else a lone "\r" is not quoted
        writer.writerow(names)
        writer.writerows([_flat(row.get(name)) for name in names] for row in rows)
        text.detach()

    return write


def _lines(rows: Iterable[Mapping[str, Any]]) -> Iterable[bytes]:
    return (json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") for row in rows)


def _write_lines(file: Any, names: list[str], rows: Rows) -> None:
    file.writelines(line + b"\n" for line in _lines(rows))


def _write_json(file: Any, names: list[str], rows: Rows) -> None:
    file.write(b"[\n" + b",\n".join(_lines(rows)) + b"\n]\n")


def _write_parquet(file: Any, names: list[str], rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pyarrow.array([None if value is None else str(_flat(value)) for value in values])
    parquet.write_table(pyarrow.table(columns), file)


def _write_excel(file: Any, names: list[str], rows: Rows) -> None:
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("predictions")

    def cell(value: Any) -> Any:
        value = _flat(value)
        if isinstance(value, str):
            made = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("", value))
            made.data_type = "s"  # a text that starts with = is no formula
            return made
        return value if isinstance(value, int | float | None) else str(value)

    sheet.append([cell(name) for name in names])
    for row in rows:
        sheet.append([cell(row.get(name)) for name in names])
    book.save(file)


WRITERS: dict[str, Callable[[Any, list[str], Rows], None]] = {
    ".csv": _write_delimited(","),
    ".tsv": _write_delimited("\t"),
    ".jsonl": _write_lines,
    ".json": _write_json,
    ".parquet": _write_parquet,
    ".xlsx": _write_excel,
}
