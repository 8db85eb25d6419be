"""CSV and TSV with line numbers, in which one bad quote costs one line and not the rest of the file."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from acclimate.corpus.line_reader import DamagedFileError, read_numbered_lines
from acclimate.errors import UserError

# A quoted field may run over many lines, and so does one whose closing quote was forgotten: these tell them apart.
MAX_ROW_LINES = 10_000
MAX_FIELD_CHARACTERS = 1 << 26


def missing_column_error(where: object, text_column: str, columns: Iterable[str]) -> UserError:
    """Make the error for a file none of whose rows has the text column."""
    names = (column.encode("utf-8", "replace").decode("utf-8") for column in columns)
    there = ", ".join(f"'{name}'" for name in names) or "none"
    return UserError(f"'{where}' has no column '{text_column}'. Its columns are {there}: name one as the text column.")


def duplicate_column_error(where: object, text_column: str) -> UserError:
    """Make the error for a file that has two text columns of the same name."""
    return UserError(f"'{where}' has several columns '{text_column}'; give each a name of its own.")


def split_unquoted_tsv_rows(lines: Sequence[str], width: int) -> list[list[str]]:
    """Cut the lines that one row of a TSV runs over at the tabs, if they look like so many rows.

    A text that begins with a quote and another one that ends with one make a single field of all that is between them:
    quotations do that in files that know no quoting. If each line by itself has as many fields as the header, it is a
    row; a field that holds line ends leaves too few tabs to some of its lines, or too many.

    Args:
        lines: The lines of the row, line ends included.
        width: Number of columns; with one the two cannot be told apart, and quotes count.

    Returns:
        The fields of each line as they stand there, quotes included; nothing if the row is one.
    """
    if width < 2 or len(lines) < 2 or any(line.count("\t") != width - 1 for line in lines):
        return []
    return [line.removesuffix("\n").removesuffix("\r").split("\t") for line in lines]


class _UnclosedQuoteError(Exception):
    """A row has run over more lines than a row may."""


class _ReplayableLines:
    """Lines for ``csv.reader`` that remember those of the current row, so that a failed row can be read anew.

    Attributes:
        damage: Where the file is cut off; None as long as it is whole. It counts as the end of the file, so that the
            rows inside a quotation that is open there are read anew as well.
    """

    def __init__(self, path: Path) -> None:
        self.damage: DamagedFileError | None = None
        self._source = read_numbered_lines(path)
        self._replayed: deque[tuple[int, str]] = deque()
        self._row: list[tuple[int, str]] = []

    def __iter__(self) -> _ReplayableLines:
        return self

    def __next__(self) -> str:
        if len(self._row) >= MAX_ROW_LINES:
            raise _UnclosedQuoteError
        if self._replayed:
            item = self._replayed.popleft()
        else:
            try:
                number, line = next(self._source)
            except DamagedFileError as damage:
                self.damage = damage
                raise StopIteration from damage
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
    def row(self) -> list[str]:
        """The lines of the current row as they stand in the file."""
        return [line for _, line in self._row]

    @property
    def first(self) -> str:
        """The first line of the current row as it stands in the file."""
        return self._row[0][1].removesuffix("\n").removesuffix("\r") if self._row else ""

    def start_row(self) -> None:
        """Forget the lines of the current row."""
        self._row.clear()

    def rewind_to_second_line(self) -> None:
        """Give all lines of the current row but the first again."""
        self._replayed.extendleft(reversed(self._row[1:]))
        self._row.clear()


def _parse_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Give each row: the number of its first line, its fields, and the reason if it breaks the rules of quoting.

    The fields of a row that breaks them are those of its first line, cut at every delimiter.

    Raises:
        Damaged: If the file is cut off; all rows before that have been given.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARACTERS))  # the default refuses texts above 128 KiB
    lines = _ReplayableLines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    width = 0
    while True:
        try:
            fields = next(reader)
            rows = split_unquoted_tsv_rows(lines.row, width) if delimiter == "\t" else []
            for place, row in enumerate(rows or [fields]):
                yield lines.start + place, row, ""
            width = width or len(fields)
            lines.start_row()
        except StopIteration:
            if lines.damage is not None:
                raise lines.damage from None
            return
        except (csv.Error, _UnclosedQuoteError) as error:
            reason = (
                "a quote is not closed"
                if isinstance(error, _UnclosedQuoteError) or "end of data" in str(error)
                else error
            )
            yield lines.start, lines.first.split(delimiter), f"not a row of fields ({reason})"
            lines.rewind_to_second_line()
            reader = csv.reader(lines, delimiter=delimiter, strict=True)


def read_csv(path: Path, text_column: str, delimiter: str) -> Iterator[tuple[int, str, str]]:
    """Stream the records of a CSV or TSV file whose first row names the columns.

    Fields may be quoted with ``"``, as spreadsheets and ``csv.writer`` do, in TSV as well. Many TSV files know no
    quoting, so a TSV line that breaks its rules is cut at the tabs if that gives the right number of fields, and so
    are the lines of a field that runs over whole rows: see :func:`split_unquoted_tsv_rows`.

    Yields:
        ``(line, text, problem)`` as ``acclimate.corpus.readers`` defines it.

    Raises:
        UserError: If the header has no column ``text_column``.
        Damaged: If the file is cut off.
    """
    width = place = -1
    for line, fields, problem in _parse_rows(path, delimiter):
        if width < 0:
            if problem:
                raise UserError(f"The header of '{path}' cannot be read: {problem}.")
            if fields:
                names = [name.strip() for name in fields]
                if text_column not in names:
                    raise missing_column_error(path, text_column, names)
                if names.count(text_column) > 1:
                    raise duplicate_column_error(path, text_column)
                width, place = len(names), names.index(text_column)
        elif problem and (delimiter != "\t" or len(fields) != width):
            yield line, "", problem
        elif not fields:
            yield line, "", ""
        elif len(fields) != width:
            yield line, "", f"{len(fields)} fields instead of {width}"
        else:
            yield line, fields[place], ""
