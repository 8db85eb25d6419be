"""Streams of whole rows from files of tables and JSON, for labelled data: a row that cannot be used is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow

from acclimate.base.errors import DamagedFileError, UserError, first_line
from acclimate.data.csv_reader import check_names, find_duplicate, read_table
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

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair."""

Row = tuple[str, dict[str, Any]]
"""The location of a row for messages (``file:line``), and its values by column."""


class NoLabel(int):
    """The label -1 in a column of which the classes have names; it marks a row without a label."""


def short_place(where: str) -> str:
    """Return the location of a row without the folder of its file."""
    return where.replace("\\", "/").rpartition("/")[2]


def check_characters(where: str, *texts: str) -> None:
    """Check that texts are valid Unicode, which JSON does not ensure.

    Raises:
        UserError: If one has half of a surrogate pair; no tokenizer reads it, and no file can hold it.
    """
    if any(map(LONE_SURROGATE.search, texts)):
        raise UserError(f"{where}: the text contains half of a surrogate pair, which is not a character; fix the row.")


def read_rows(path: Path, columns: Collection[str] = (), encoding: str | None = None) -> Iterator[Row]:
    """Yield the rows of a table or of JSON in any format but text, with blanks around the names of columns removed.

    Tables are read by :func:`acclimate.data.csv_reader.read_table`. Labels that ``datasets`` has stored as numbers
    are replaced by their names, which it keeps in the metadata of Parquet and Arrow files.

    Args:
        path: The file.
        columns: The columns that every row has.
        encoding: Encoding of a format of text; None for UTF-8.

    Raises:
        UserError: If a line cannot be parsed, the text is not in that encoding, or the file is damaged.
    """
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


def _read_json(path: Path, encoding: str | None) -> Iterator[Row]:
    form = detect_format(path)
    for number, row in read_json_rows(path, _parse_json, encoding):
        where = f"{path}:{number}" if form == ".jsonl" else f"{path}: row {number}"
        if row is BLANK:
            continue
        if isinstance(row, Exception):
            advised = _advise(path, str(row))
            raise UserError(f"{where}: {advised if advised != str(row) else f'{row}; fix or remove the line'}.")
        if not isinstance(row := as_row(row), dict):
            raise UserError(f'{where}: a row must be a JSON object such as {{"text": ..., "label": ...}}.')
        yield where, _strip_names(where, row)


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


def _parse_json(text: str) -> object:
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


def _strip_names(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without blanks around the names of its columns."""
    names = check_names(where, [str(name).strip() for name in row])
    return dict(zip(names, row.values(), strict=True))


def _read_table(path: Path, delimiter: str, columns: Collection[str], encoding: str | None) -> Iterator[Row]:
    names: list[str] = []
    for line, fields, problem in read_table(read_numbered_lines(path, encoding), path, delimiter, columns):
        where = f"{path}:{line}"
        if problem:
            raise UserError(f"{where}: {problem}; fix the line.")
        try:
            "".join(fields).encode("utf-8")
        except UnicodeEncodeError as error:
            reason = _advise(path, explain_surrogates("".join(fields)))
            raise UserError(f"{where}: {reason}.") from error
        if not names:
            names = check_names(where, fields)
        elif fields:
            yield where, dict(zip(names, fields, strict=True))


def _read_columnar(path: Path) -> Iterator[Row]:
    def select(schema: pyarrow.Schema) -> None:
        check_names(path, schema.names)

    number = 0
    classes: list[str] | None = None
    for schema, batch in read_batches(path, select):
        classes = _class_names(schema, "label") if classes is None else classes
        for row in batch.to_pylist():
            number += 1
            where = f"{path}: row {number}"
            if classes and "label" in row:
                row["label"] = name_of_class(where, row["label"], classes)
            yield where, _strip_names(where, row)


def class_names(path: Path, column: str) -> list[str]:
    """Return the names of the classes of a column of a Parquet or Arrow file; empty if it has none."""
    return next((_class_names(schema, column) for schema, _ in read_batches(path, lambda schema: None)), [])


def _class_names(schema: pyarrow.Schema, column: str) -> list[str]:
    """Return the names of the classes if ``datasets`` has marked the labels as ``ClassLabel`` or lists of it."""
    with suppress(ValueError, TypeError, LookupError):
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        while isinstance(feature, list) or "feature" in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return [str(name) for name in feature["names"]]
    return []


def name_of_class(where: str, value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or of each in a list; a value that is not a number remains as it is.

    The number -1 is a :class:`NoLabel`, since ``datasets`` marks rows without a label by it.

    Raises:
        UserError: If there is no such class.
    """
    if isinstance(value, list):
        return [name_of_class(where, entry, names) for entry in value]
    if not isinstance(value, int):
        return value
    if value == -1:
        return NoLabel(value)
    if not 0 <= value < len(names):
        raise UserError(
            f"{where}: the label {value} is none of the {len(names)} classes of the dataset; remove the row."
        )
    return names[value]
