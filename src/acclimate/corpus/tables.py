"""CSV and TSV with line numbers, in which one bad quote costs one line and not the rest of the file."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from acclimate.corpus.streams import numbered_lines
from acclimate.errors import UserError

# A quoted field may run over many lines, and so does one whose closing quote was forgotten: these tell them apart.
LONGEST_ROW_IN_LINES = 10_000
LONGEST_FIELD = 1 << 26


def column_missing(where: object, text_column: str, columns: Iterable[str]) -> UserError:
    """Make the error for a file none of whose rows has the text column."""
    names = (column.encode("utf-8", "replace").decode("utf-8") for column in columns)
    there = ", ".join(f"'{name}'" for name in names) or "none"
    return UserError(f"'{where}' has no column '{text_column}'. Its columns are {there}: name one as the text column.")


def column_twice(where: object, text_column: str) -> UserError:
    """Make the error for a file that has two text columns of the same name."""
    return UserError(f"'{where}' has several columns '{text_column}'; give each a name of its own.")


class _Unclosed(Exception):
    """A row has run over more lines than a row may."""


class _Lines:
    """Lines for ``csv.reader`` that remember those of the current row, so that a failed row can be read anew."""

    def __init__(self, path: Path) -> None:
        self._source = numbered_lines(path)
        self._again: deque[tuple[int, str]] = deque()
        self._row: list[tuple[int, str]] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if len(self._row) >= LONGEST_ROW_IN_LINES:
            raise _Unclosed
        if self._again:
            item = self._again.popleft()
        else:
            number, line = next(self._source)
            # Bytes that are not UTF-8 pass as lone surrogates, which the reader of rows finds: an undecodable line
            # inside a quoted field must not shift the rows after it.
            item = (number, line.decode("utf-8", "surrogateescape"))
        self._row.append(item)
        return item[1]

    @property
    def start(self) -> int:
        """The number of the first line of the current row."""
        return self._row[0][0] if self._row else 0

    @property
    def first(self) -> str:
        """The first line of the current row as it stands in the file."""
        return self._row[0][1].removesuffix("\n").removesuffix("\r") if self._row else ""

    def next_row(self) -> None:
        """Forget the lines of the current row."""
        self._row.clear()

    def back_to_second_line(self) -> None:
        """Give all lines of the current row but the first again."""
        self._again.extendleft(reversed(self._row[1:]))
        self._row.clear()


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Give each row: the number of its first line, its fields, and the reason if it breaks the rules of quoting.

    The fields of a row that breaks them are those of its first line, cut at every delimiter.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))  # the default refuses texts above 128 KiB
    lines = _Lines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            fields = next(reader)
            yield lines.start, fields, ""
            lines.next_row()
        except StopIteration:
            return
        except (csv.Error, _Unclosed) as error:
            reason = "a quote is not closed" if isinstance(error, _Unclosed) or "end of data" in str(error) else error
            yield lines.start, lines.first.split(delimiter), f"not a row of fields ({reason})"
            lines.back_to_second_line()
            reader = csv.reader(lines, delimiter=delimiter, strict=True)


def read_table(path: Path, text_column: str, delimiter: str) -> Iterator[tuple[int, str, str]]:
    """Stream the records of a CSV or TSV file whose first row names the columns.

    Fields may be quoted with ``"``, as spreadsheets and ``csv.writer`` do, in TSV as well. Many TSV files know no
    quoting, so a TSV line that breaks its rules is cut at the tabs if that gives the right number of fields.

    Yields:
        ``(line, text, problem)`` as ``acclimate.corpus.readers`` defines it.

    Raises:
        UserError: If the header has no column ``text_column``.
        Damaged: If the file is cut off.
    """
    width = place = -1
    for line, fields, problem in _rows(path, delimiter):
        if width < 0:
            if problem:
                raise UserError(f"The header of '{path}' cannot be read: {problem}.")
            if fields:
                names = [name.strip() for name in fields]
                if text_column not in names:
                    raise column_missing(path, text_column, names)
                if names.count(text_column) > 1:
                    raise column_twice(path, text_column)
                width, place = len(names), names.index(text_column)
        elif problem and (delimiter != "\t" or len(fields) != width):
            yield line, "", problem
        elif not fields:
            yield line, "", ""
        elif len(fields) != width:
            yield line, "", f"{len(fields)} fields instead of {width}"
        else:
            yield line, fields[place], ""
