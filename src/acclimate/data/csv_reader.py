"""Reads CSV and TSV with line numbers; a misplaced quote spoils one line, not the rest of the file."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from acclimate.base.errors import DamagedFileError, UserError, printable, warn_once

# A quoted field may span many lines, and so does one whose closing quote is missing. These limits distinguish them.
MAX_ROW_LINES = 10_000
MAX_FIELD_CHARACTERS = 1 << 26
DELIMITERS = (",", ";", "\t", "|")
SEPARATOR_LINE = re.compile(rb'"?sep=([\x01-\x7f])"?[\r\n]', re.IGNORECASE)


DEFAULT_COLUMN = "text"
WHOLE_ROW = "*"
"""The text column with which the text of a row is the whole row, as a JSON object."""
TEXT_NAMES = (
    *("text", "sentence", "review", "review_text", "content", "body", "comment", "tweet", "post", "message"),
    *("utterance", "abstract", "headline", "paragraph", "passage", "question", "query"),
)
"""Usual names of the column of the text, in lower case; the order has no meaning."""
CHAT_COLUMNS = ("messages", "conversations")
"""Names of the column of the turns of a conversation."""
TITLE_NAMES = ("subject", "title", "headline", "betreff", "titel")
"""Usual names of a column that belongs to the text, in lower case."""
_reported: set[tuple[str, ...]] = set()
"""Folders with the columns of files in them, of which it was reported which one holds the text."""


def missing_column_error(where: object, text_column: str, columns: Iterable[str]) -> UserError:
    """Make the error for a source without the text column."""
    names = [column.encode("utf-8", "replace").decode("utf-8") for column in columns]
    available = ", ".join(f"'{name}'" for name in names) or "none"
    if chats := next((name for name in CHAT_COLUMNS if name in names), None):
        return UserError(
            f"'{where}' has no column '{text_column}'. Its column '{chats}' holds conversations, which are read next "
            "to a corpus: --replay chat:FILE. To read another column as text, name it with --text-column."
        )
    return UserError(
        f"'{where}' has no column '{text_column}'. Its columns are {available}: name one of them as the text column, "
        "with --text-column (text_column= in Python) or after a colon, as in FILE:COLUMN; several are joined, as in "
        "FILE:subject,body."
    )


def name_parts(name: str) -> list[str]:
    """Return the names between the commas of the name of several columns, as in ``subject,body``."""
    return [part.strip() for part in name.split(",")]


def split_columns(name: str, columns: Collection[str]) -> list[str]:
    """Return the columns that a name stands for: the column of this name or, without one, several between commas."""
    parts = name_parts(name)
    return parts if name not in columns and len(parts) > 1 and set(parts) <= set(columns) else [name]


def join_cells(cells: Sequence[Any]) -> Any:
    """Return cells as one text with a line per cell, without empty ones; a cell that is no text, if there is one."""
    strange = [cell for cell in cells if not isinstance(cell, str | None) and cell == cell]
    if len(cells) == 1 or strange:
        return (strange or cells)[0]
    return "\n".join(cell for cell in cells if isinstance(cell, str) and cell.strip())


def propose_join(column: str, columns: Iterable[str]) -> str:
    """Return a sentence, after a space, on how to read a title together with a text; empty if there is no title."""
    titles = [name for name in columns if name.lower() in TITLE_NAMES and name != column]
    return f" --text-column {titles[0]},{column} reads both." if titles else ""


def write_row(row: Mapping[Any, Any]) -> str:
    """Return a row of a table as a JSON object; values without a form in JSON are written as text."""
    return json.dumps({str(name): value for name, value in row.items()}, ensure_ascii=False, default=str)


def find_duplicate(names: Sequence[str]) -> str | None:
    """Return the first duplicated name, or None; columns without a name do not count."""
    return next((name for place, name in enumerate(names) if name and name in names[:place]), None)


def check_names(where: object, names: list[str]) -> list[str]:
    """Return names of columns.

    Raises:
        UserError: If one is duplicated.
    """
    if (duplicate := find_duplicate(names)) is not None:
        raise UserError(f"{where}: two columns are named '{duplicate}'; rename one.")
    return names


def infer_column(where: object, text_column: str, columns: Iterable[str]) -> str | None:
    """Return the name of the text column; None if it does not exist.

    A name of several columns, as ``subject,body``, exists if all of them do.

    If no column is called ``text`` and no other was named, it is the only one that has a usual name, such as
    ``review``. A line reports that, and the columns that are not used.

    Args:
        where: Name of the source, for messages.
        text_column: The column that is wanted.
        columns: The columns that exist.
    """
    if text_column == WHOLE_ROW:
        return text_column
    names = [str(column).strip() for column in columns]
    parts = split_columns(text_column, names)
    if text_column in names or text_column != DEFAULT_COLUMN:
        usual = [text_column] if set(parts) <= set(names) else []
    else:
        usual = [name for name in names if name.lower() in TEXT_NAMES]
    if len(usual) != 1:
        return None
    others = ", ".join(name for name in names if name and name not in (*usual, *parts))
    unused = f"; not used: {others:.200}" if others else ""
    key = (str(where).rpartition(os.sep)[0] or str(where), *names)
    # Once per folder, which may hold thousands of files with the same columns.
    if (unused or usual[0] != text_column) and key not in _reported:
        _reported.add(key)
        hint = propose_join(usual[0], names) if usual[0] != text_column else ""
        warn_once(printable(f"'{where}' has its text in '{usual[0]}'{unused}.{hint}"))
    return usual[0]


def find_columns(where: object, text_column: str, columns: Sequence[str]) -> list[int]:
    """Return the indices of the columns of the text; blanks around the names of columns do not count.

    Raises:
        UserError: If there is no such column, or there are several of one name.
    """
    names = [name.strip() for name in columns]
    if (found := infer_column(where, text_column, names)) is None:
        raise missing_column_error(where, text_column, names)
    parts = split_columns(found, names)
    if (double := next((part for part in parts if names.count(part) > 1), None)) is not None:
        raise UserError(f"'{where}' has several columns '{double}'; rename all but one.")
    return [names.index(part) for part in parts]


def split_unquoted_tsv_rows(lines: Sequence[str], width: int) -> list[list[str]]:
    """Split the lines of a multi-line TSV row at the tabs if each of them looks like a row.

    In a file without quoting, a text that begins with a quotation mark and a later one that ends with one would make
    everything between them a single field. If each line has as many fields as the header, the lines are rows. A field
    that really contains line ends leaves too few tabs in some of its lines, or too many.

    Args:
        lines: The lines of the row, line ends included.
        width: Number of columns. With a single column the two cases look the same, and quotes count.

    Returns:
        The fields of each line, quotes included; an empty list if the lines are one row.
    """
    if width < 2 or len(lines) < 2 or any(line.count("\t") != width - 1 for line in lines):
        return []
    return [line.removesuffix("\n").removesuffix("\r").split("\t") for line in lines]


class _UnclosedQuoteError(Exception):
    """A row has more than :data:`MAX_ROW_LINES` lines."""


class _ReplayableLines:
    """Lines for ``csv.reader`` that can be read again from the second line of the current row.

    Attributes:
        damage: Where the file is damaged; None until then. For ``csv.reader`` the file ends there, so that the rows
            inside a field that is still open are read again as well.
    """

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self.damage: DamagedFileError | None = None
        self._source = lines
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
            # Bytes that are not UTF-8 become lone surrogates, which the corpus counts as broken records: an
            # undecodable line inside a quoted field must not shift the rows after it.
            item = (number, line.decode("utf-8", "surrogateescape"))
        self._row.append(item)
        return item[1]

    @property
    def start(self) -> int:
        """The number of the first line of the current row."""
        return self._row[0][0] if self._row else 0

    @property
    def row(self) -> list[str]:
        """The lines of the current row, line ends included."""
        return [line for _, line in self._row]

    @property
    def first(self) -> str:
        """The first line of the current row, without its line end."""
        return self._row[0][1].removesuffix("\n").removesuffix("\r") if self._row else ""

    def start_row(self) -> None:
        """Begin a new row."""
        self._row.clear()

    def rewind_to_second_line(self) -> None:
        """Read the current row again from its second line."""
        self._replayed.extendleft(reversed(self._row[1:]))
        self._row.clear()


def _parse_rows(source: Iterator[tuple[int, bytes]], delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield the first line number, the fields and the quoting error (or an empty string) of each row.

    A line that violates the rules of quoting is split in another way if that gives as many fields as the header has:
    see :func:`_split_badly_quoted_line`. If it does not, it has no fields, and an error.

    Raises:
        DamagedFileError: If the file is damaged, after all rows before the damage.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARACTERS))  # the default refuses texts above 128 KiB
    lines = _ReplayableLines(source)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    width = 0
    while True:
        try:
            fields = next(reader)
            rows = split_unquoted_tsv_rows(lines.row, width) if delimiter == "\t" else []
            for offset, row in enumerate(rows or [fields]):
                yield lines.start + offset, row, ""
            width = width or len(fields)
            lines.start_row()
        except StopIteration:
            if lines.damage is not None:
                raise lines.damage from None
            return
        except (csv.Error, _UnclosedQuoteError) as error:
            is_unclosed = isinstance(error, _UnclosedQuoteError) or "end of data" in str(error)
            reason = "a quote is not closed" if is_unclosed else error
            fields = _split_badly_quoted_line(lines.first, delimiter, width)
            yield lines.start, fields, "" if fields else f"not a valid row ({reason})"
            lines.rewind_to_second_line()
            reader = csv.reader(lines, delimiter=delimiter, strict=True)


def _split_badly_quoted_line(line: str, delimiter: str, width: int) -> list[str]:
    r"""Split a TSV line at every tab, and a CSV line with quotes escaped as ``\"``; empty if the width is wrong."""
    fields: list[str] = []
    if delimiter == "\t":
        fields = line.split("\t")
    elif '\\"' in line:
        with suppress(csv.Error):
            fields = next(csv.reader([line], delimiter=delimiter, escapechar="\\", doublequote=False, strict=True))
    return fields if len(fields) == width else []


def _detect_delimiter(
    lines: Iterator[tuple[int, bytes]], usual: str, required: Collection[str]
) -> tuple[str, Iterator[tuple[int, bytes]]]:
    """Return the delimiter of a table, and all of its lines.

    It is the usual one, unless the header has the required columns only with another one: spreadsheets of many
    countries write semicolons into ``.csv``. If no delimiter gives the columns, it is the most frequent one. A first
    line ``sep=;``, which Excel writes, names the delimiter and is left out.
    """
    read: list[tuple[int, bytes]] = []
    header, damage = "", None
    try:
        for number, line in lines:
            header = line.decode("utf-8", "replace").strip()
            if not read and (named := SEPARATOR_LINE.match(line)):
                return named[1].decode(), lines
            read.append((number, line))
            if header:
                break
    except DamagedFileError as error:
        damage = error

    def replay() -> Iterator[tuple[int, bytes]]:
        yield from read
        if damage is not None:
            raise damage
        yield from lines

    def rank(delimiter: str) -> tuple[bool, bool, int]:
        names = [name.strip().strip('"').strip() for name in header.split(delimiter)]
        found = all(set(split_columns(name, names)) <= set(names) for name in required)
        return found, delimiter == usual and len(names) > 1, len(names)

    return max(dict.fromkeys((usual, *DELIMITERS)), key=rank), replay()


def read_table(
    lines: Iterator[tuple[int, bytes]], where: object, delimiter: str, required: Collection[str]
) -> Iterator[tuple[int, list[str], str]]:
    r"""Stream the header and the rows of a CSV or TSV file whose first row names the columns.

    Fields may be quoted with ``"``, also in TSV, as spreadsheets and ``csv.writer`` do. Since many TSV files do not
    use quoting, a TSV line that violates its rules is split at the tabs if that gives the right number of fields, and
    so are the lines of a multi-line field that look like rows: see :func:`split_unquoted_tsv_rows`. In CSV, ``\"`` is
    also read as a quote.

    Args:
        lines: The numbered lines of the file.
        where: Name of the file, for messages.
        delimiter: The usual delimiter of the format. If the header has the required columns only with another one
            (comma, semicolon, tab or ``|``), that is used.
        required: The columns that will be read.

    Yields:
        Line number, fields and problem: first the header, without blanks around the names, then the rows. Where the
        problem is empty, there are as many fields as columns, or none for a blank row. Bytes that are not UTF-8 are
        lone surrogates.

    Raises:
        UserError: If the header is invalid.
        DamagedFileError: If the file is damaged, after all rows before the damage.
    """
    delimiter, lines = _detect_delimiter(lines, delimiter, required)
    width = 0
    for line, fields, problem in _parse_rows(lines, delimiter):
        if not width:
            if problem:
                raise UserError(f"The header of '{where}' cannot be read: {problem}.")
            if fields:
                width = len(fields)
                yield line, [name.strip() for name in fields], ""
        elif not problem and fields and len(fields) != width:
            hint = " (the header has no separator; known ones are comma, semicolon, tab and |)" if width == 1 else ""
            yield line, fields, f"{len(fields)} fields instead of {width}{hint}"
        else:
            yield line, fields, problem


def read_csv(
    lines: Iterator[tuple[int, bytes]], where: object, text_column: str, delimiter: str
) -> Iterator[tuple[int, str, str]]:
    """Stream the records of a CSV or TSV file: see :func:`read_table`.

    Yields:
        ``(line, text, problem)`` as defined in :mod:`acclimate.data.readers`.

    Raises:
        UserError: If the header is invalid or has no column ``text_column``.
        DamagedFileError: If the file is damaged.
    """
    names = list[str]()
    for line, fields, problem in read_table(lines, where, delimiter, [text_column]):
        if not names:
            names = fields
            columns = [] if text_column == WHOLE_ROW else find_columns(where, text_column, fields)
            if not columns and (duplicate := find_duplicate(names)) is not None:
                raise UserError(f"'{where}' has several columns '{duplicate}'; rename all but one.")
        elif problem or not fields:
            yield line, "", problem
        else:
            whole = {} if columns else dict(zip(names, fields, strict=True))
            yield line, join_cells([fields[one] for one in columns]) if columns else write_row(whole), ""
