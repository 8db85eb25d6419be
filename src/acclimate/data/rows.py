"""Streams of whole rows from files of tables and JSON, for labelled data, and the rows that cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow

from acclimate.base.errors import DamagedFileError, UserError, first_line, warn_once
from acclimate.data.csv_reader import check_names, find_duplicate, join_cells, read_table, split_columns
from acclimate.data.opening import (
    COLUMNAR,
    EXCEL,
    NOT_UTF8,
    advise_encoding,
    check_extra,
    detect_format,
    explain_surrogates,
    read_numbered_lines,
)
from acclimate.data.readers import BLANK, read_batches, read_excel_rows, read_json_rows
from acclimate.data.reading import ReadingOptions

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair."""

Row = tuple[str, dict[str, Any]]
"""The location of a row for messages (``file:line``), and its values by column."""


MAX_LEFT_OUT = 0.2
"""Largest share of the rows of a split that is left out."""
T = TypeVar("T")
R = TypeVar("R")


class RowError(UserError):
    """A row that cannot be used; a task leaves it out and counts it.

    Attributes:
        where: Its location.
        fault: What is wrong, as it follows a number of rows, such as ``without a label``.
        message: What is wrong with this row; empty if the fault says it all.
    """

    def __init__(self, where: str, fault: str, message: str = "") -> None:
        super().__init__(f"{where}: {message or f'a row {fault}'}; fix or remove it.")
        self.where, self.fault, self.message = where, fault, message


class LeftOut:
    """The rows of a task that cannot be used, by split.

    Args:
        name: Name of the task.
        strict: Whether such a row is an error.
        broken: Rows that could not be parsed, by split.
        what: What has the name.

    Attributes:
        most: Largest share of the rows of a split that is left out.
    """

    def __init__(
        self,
        name: str,
        strict: bool = False,
        broken: Mapping[str, Iterable[RowError]] | None = None,
        what: str = "task",
    ) -> None:
        self.name, self.strict, self.what, self.most = name, strict, what, MAX_LEFT_OUT
        self.errors = {split: list(found) for split, found in (broken or {}).items()}

    def read(self, split: str, rows: Iterable[T], read: Callable[[T], R]) -> list[R]:
        """Return what a function makes of rows; those for which it raises a :class:`RowError` are left out."""
        kept = []
        for row in rows:
            try:
                kept.append(read(row))
            except RowError as error:
                self.errors.setdefault(split, []).append(error)
        return kept

    def report(self, kept: Mapping[str, Sized]) -> None:
        """Say in one message how many rows have which fault, and where the first of each is.

        Args:
            kept: The other rows of each split.

        Raises:
            UserError: If there are such rows and the reading is strict, or too many in a split.
        """
        faults: dict[str, list[RowError]] = {}
        for error in (error for found in self.errors.values() for error in found):
            faults.setdefault(error.fault, []).append(error)
        if not faults:
            return
        listed = ", ".join(
            f"{len(found):,} {fault} (first: {short_place(found[0].where)}"
            + (f": {found[0].message})" if found[0].message else ")")
            for fault, found in faults.items()
        )
        left = sum(map(len, faults.values()))
        rows = f"{left:,} of {left + sum(map(len, kept.values())):,} rows"
        most = [
            split
            for split, found in self.errors.items()
            if len(found) > self.most * (len(found) + len(kept.get(split, ())))
        ]
        if self.strict or most:
            why = f"more than {self.most:.0%} of {most[0]}" if most else "and 'strict' is given"
            raise UserError(
                f"{rows} of the {self.what} '{self.name}' cannot be used, {why}: {listed}. Fix or remove these rows."
            )
        warn_once(f"The {self.what} '{self.name}' leaves out {rows}: {listed}.")


class NoLabel(int):
    """The label -1 in a column of which the classes have names; it marks a row without a label."""


def column_names(rows: Iterable[Row]) -> list[str]:
    """Return the columns of rows, in the order in which they occur first."""
    return list(dict.fromkeys(column for _, row in rows for column in row))


def join_columns(rows: list[Row], options: ReadingOptions) -> list[Row]:
    """Return rows in which several columns that are one text, as in ``subject,body``, are one column of that name."""
    names = column_names(rows)
    given = (name for name in (options.text_column, options.pair_column) if name)
    joined = {name: parts for name in given if len(parts := split_columns(name, names)) > 1}
    others = (options.label_column, options.group_column, options.text_column, options.pair_column)
    read = {part for parts in joined.values() for part in parts if part not in others}
    return [
        (
            where,
            {name: join_cells([*map(row.get, parts)]) for name, parts in joined.items()}
            | {name: value for name, value in row.items() if name not in read},
        )
        for where, row in (rows if joined else ())
    ] or rows


def edit_rows(rows: list[Row], columns: Iterable[str | None], options: ReadingOptions) -> list[Row]:
    """Return rows whose texts, in some columns, are edited as the options say."""
    if not (edits := options.edits):
        return rows
    names = [name for name in columns if name is not None]
    return [(where, row | {name: edits.of(row[name]) for name in names if name in row}) for where, row in rows]


def short_place(where: str) -> str:
    """Return the location of a row without the folder of its file."""
    file, mark, place = where.partition(": ")
    return file.replace("\\", "/").rpartition("/")[2] + mark + place


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, blank, or a missing number."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def check_text(where: str, value: Any, what: str = "text") -> str:
    """Return a text that can be read.

    Raises:
        RowError: If it is empty, no string, or not valid Unicode.
    """
    if is_missing(value):
        raise RowError(where, f"without a {what}")
    if not isinstance(value, str):
        raise RowError(where, f"whose {what} is not a string", f"the {what} is {value!r:.40}")
    check_characters(where, value)
    return value


def check_characters(where: str, *texts: str) -> None:
    """Check that texts are valid Unicode, which JSON does not ensure.

    Raises:
        RowError: If one has half of a surrogate pair; no tokenizer reads it, and no file can hold it.
    """
    if any(map(LONE_SURROGATE.search, texts)):
        raise RowError(where, "with half of a surrogate pair, which is not a character")


def read_rows(
    path: Path,
    columns: Collection[str] = (),
    encoding: str | None = None,
    broken: list[RowError] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a table or of JSON in any format but text, with blanks around the names of columns removed.

    Tables are read by :func:`acclimate.data.csv_reader.read_table`. Labels that ``datasets`` has stored as numbers
    are replaced by their names, which it keeps in the metadata of Parquet and Arrow files.

    Args:
        path: The file.
        columns: The columns that every row has.
        encoding: Encoding of a format of text; None for UTF-8.
        broken: Takes the lines that cannot be parsed; None makes the first of them an error.

    Raises:
        UserError: If the text is not in that encoding, or the file is damaged.
    """
    for row in _read_any(path, columns, encoding):
        if not isinstance(row, RowError):
            yield row
        elif broken is None:
            raise row
        else:
            broken.append(row)


def _read_any(path: Path, columns: Collection[str], encoding: str | None) -> Iterator[Row | RowError]:
    form = detect_format(path)
    check_extra(path)
    try:
        if form == EXCEL:
            yield from ((f"{path}:{number}", row) for number, row in read_excel_rows(path))
        elif form in COLUMNAR:
            yield from _read_columnar(path)
        elif form in (".jsonl", ".json"):
            yield from _read_json(path, encoding)
        else:
            yield from _read_table(path, "," if form == ".csv" else "\t", columns, encoding)
    except DamagedFileError as damage:
        reason = _advise(path, damage.reason)
        raise UserError(f"'{path}' cannot be read: line {damage.line}: {reason}.") from damage
    except (OSError, EOFError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"'{path}' cannot be read: {first_line(error)}.") from error


def _advise(path: Path, reason: str) -> str:
    """Return why a file or a row cannot be read, with advice if it is in another encoding."""
    return f"{reason}; {advise_encoding(path)}" if reason.startswith(NOT_UTF8) else reason


def _read_json(path: Path, encoding: str | None) -> Iterator[Row | RowError]:
    form = detect_format(path)
    for number, row in read_json_rows(path, parse_json, encoding):
        where = f"{path}:{number}" if form == ".jsonl" else f"{path}: row {number}"
        if row is BLANK:
            continue
        if isinstance(row, Exception):
            advised = _advise(path, str(row))
            if advised != str(row):
                raise UserError(f"{where}: {advised}.")
            yield RowError(where, "that cannot be parsed", str(row))
        elif not isinstance(row := as_row(row), dict):
            yield RowError(
                where, "that are no JSON objects", 'a row must be a JSON object such as {"text": ..., "label": ...}'
            )
        else:
            yield _strip_names(where, row)


def as_row(value: Any) -> Any:
    """Return a pair of a text and its annotations, as spaCy has it, as a row; any other value as it is."""
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], dict)
    ):
        return {**value[1], "text": value[0]}
    return value


def parse_json(text: str) -> object:
    """Parse JSON.

    Raises:
        ValueError: If it is invalid, or a key is duplicated.
    """
    return json.loads(text, object_pairs_hook=_reject_duplicate_keys)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of key-value pairs.

    Raises:
        ValueError: If a key is duplicated.
    """
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"the key '{find_duplicate([name for name, _ in pairs])}' is duplicated; keep one")
    return row


def _strip_names(where: str, row: Mapping[str, Any]) -> Row | RowError:
    """Return a row without blanks around the names of its columns; two of the same name are an error."""
    names = [str(name).strip() for name in row]
    if (duplicate := find_duplicate(names)) is not None:
        return RowError(where, "that cannot be parsed", f"two columns are named '{duplicate}'")
    return where, dict(zip(names, row.values(), strict=True))


def _read_table(
    path: Path, delimiter: str, columns: Collection[str], encoding: str | None
) -> Iterator[Row | RowError]:
    names: list[str] = []
    for line, fields, problem in read_table(read_numbered_lines(path, encoding), path, delimiter, columns):
        where = f"{path}:{line}"
        if problem:
            yield RowError(where, "that cannot be parsed", problem)
            continue
        try:
            "".join(fields).encode("utf-8")
        except UnicodeEncodeError as error:
            reason = _advise(path, explain_surrogates("".join(fields)))
            raise UserError(f"{where}: {reason}.") from error
        if not names:
            names = check_names(where, fields)
        elif fields:
            yield where, dict(zip(names, fields, strict=True))


def _read_columnar(path: Path) -> Iterator[Row | RowError]:
    def select(schema: pyarrow.Schema) -> None:
        check_names(path, schema.names)

    number = 0
    classes: dict[str, list[str]] | None = None
    for schema, batch in read_batches(path, select):
        classes = class_names(schema) if classes is None else classes
        for row in batch.to_pylist():
            number += 1
            where = f"{path}: row {number}"
            try:
                yield _strip_names(where, name_classes(where, row, classes))
            except RowError as error:
                yield error


def class_names(value: Any) -> dict[str, list[str]]:
    """Return the names of the classes of each column that ``datasets`` has marked as ``ClassLabel`` or lists of it.

    Args:
        value: A ``Dataset``, or a table or schema of pyarrow, whose metadata have the features; others have no names.
    """
    features, schema = (getattr(value, name, None) for name in ("features", "schema"))
    described: Any = {}
    if isinstance(features, Mapping) and hasattr(features, "to_dict"):
        described = features.to_dict()
    elif isinstance(schema := value if isinstance(value, pyarrow.Schema) else schema, pyarrow.Schema):
        with suppress(ValueError, TypeError, LookupError):
            described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    found = {}
    for column, feature in described.items() if isinstance(described, dict) else ():
        with suppress(TypeError, LookupError):
            while "names" not in feature:
                feature = feature[0] if isinstance(feature, list) else feature["feature"]
            if feature["_type"] == "ClassLabel":
                found[column] = [str(name) for name in feature["names"]]
    return found


def name_classes(where: str, row: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a row with the names of classes instead of their numbers.

    Raises:
        RowError: If there is no such class.
    """
    return {**row, **{name: name_of_class(where, row[name], known) for name, known in classes.items() if name in row}}


def name_of_class(where: str, value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or of each in a list; a value that is not a number remains as it is.

    The number -1 is a :class:`NoLabel`, since ``datasets`` marks rows without a label by it.

    Raises:
        RowError: If there is no such class.
    """
    if isinstance(value, list):
        return [name_of_class(where, entry, names) for entry in value]
    if not isinstance(value, int):
        return value
    if value == -1:
        return NoLabel(value)
    if not 0 <= value < len(names):
        raise RowError(
            where, "with an unknown class", f"the label {value} is none of the {len(names)} classes of the dataset"
        )
    return names[value]
