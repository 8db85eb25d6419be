"""The content of columns as their values show it: texts, classes, numbers or tags of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import regex

from acclimate.base.errors import UserError
from acclimate.data.rows import MAX_LEFT_OUT, Row, column_names, is_missing
from acclimate.tasks.groups import GROUP_NAMES
from acclimate.tasks.kinds.classification.labels import NUMBER

WORD = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[\p{L}\p{N}\p{M}]+")
"""A word, or a character in scripts without blanks between words."""
TAG = re.compile(r"O|[BIESLU][-_.:/|](?=.*[^\W\d]).{2,}|(?=.*[^\W\d]).{2,}-[BIESLU]")
"""Tag of a word, of a type with at least two characters."""
MIN_WORDS = 3
"""Texts have more words than this on average."""
MIN_DISTINCT = 1 / 3
"""Least number of different texts per row, and of different passages per query."""
MIN_ROWS, MAX_CLASSES = 3, 200
"""Least rows per class on average, and most classes."""
NO_LABEL = re.compile(
    r"(.*[ _.-])?(id|ids|idx|index|no|nr|date|time|timestamp|created|updated|user|author|annotator|patient|lang"
    r"|language|source|url|name|split|version|count|length|start|end|offset)"
)
"""Usual names, in lower case, of columns that say where a row is from."""


LARGEST = 1e18
"""Largest absolute value of a target."""


def cells(rows: Sequence[Row], column: str) -> list[Any]:
    """Return the values of a column that are not missing."""
    return [row[column] for _, row in rows if not is_missing(row.get(column))]


def mean_words(values: Sequence[Any]) -> float:
    """Return the mean number of words of values."""
    return sum(len(WORD.findall(str(value))) for value in values) / max(len(values), 1)


def are_texts(values: Sequence[Any]) -> bool:
    """Return whether values are texts, most of them different."""
    return (
        bool(values)
        and 2 * sum(isinstance(value, str) for value in values) > len(values)
        and len(set(map(str, values))) >= MIN_DISTINCT * len(values)
        and mean_words(values) > MIN_WORDS
    )


def are_classes(values: Sequence[Any]) -> bool:
    """Return whether values can be classes: at least two short ones, each in several rows."""
    kinds = {str(value) for value in values}
    return (
        2 <= len(kinds) <= MAX_CLASSES
        and not any(isinstance(value, Mapping) for value in values)
        and len(values) >= MIN_ROWS * len(kinds)
        and mean_words(list(kinds)) <= 2 * MIN_WORDS
    )


def read_number(value: Any) -> float | None:
    """Return a number, which may be text as in CSV; None for anything else, true and false included.

    Numbers beyond :data:`LARGEST` are none: their squares overflow in single precision.
    """
    if isinstance(value, bool) or (isinstance(value, str) and (not NUMBER.fullmatch(value.strip()) or "," in value)):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) <= LARGEST else None


def are_scores(values: Sequence[Any]) -> bool:
    """Return whether most values are numbers, at least one of them with a fraction."""
    found = [number for value in values if (number := read_number(value)) is not None]
    return 2 * len(found) >= len(values) and not all(number.is_integer() for number in found)


def are_tags(values: Sequence[Any]) -> bool:
    """Return whether values are tags of words, within and outside of entities; up to a fifth may be something else."""
    found = [str(value).strip() for value in values if TAG.fullmatch(str(value).strip())]
    return "O" in found and len(set(found)) > 1 and len(found) >= (1 - MAX_LEFT_OUT) * len(values)


def label_like(rows: Sequence[Row], columns: Iterable[str]) -> list[str]:
    """Return the columns whose values can be classes or scores, and whose names do not say something else."""
    return [
        name
        for name in columns
        if not NO_LABEL.fullmatch(name.lower())
        and (are_scores(found := cells(rows, name)) or (name.lower() not in GROUP_NAMES and are_classes(found)))
    ]


def holds_content(rows: Sequence[Row], columns: Iterable[str]) -> bool:
    """Return whether one of the columns has lists or different words, so that it can be a part of the task."""
    for name in columns:
        values = cells(rows, name)
        words = [value for value in values if isinstance(value, str) and any(map(str.isalpha, value))]
        is_list = any(isinstance(value, list | Mapping) for value in values)
        differs = 2 * len(words) > len(values) and len(set(words)) >= MIN_DISTINCT * len(values)
        if not NO_LABEL.fullmatch(name.lower()) and (is_list or differs):
            return True
    return False


def find_tags(rows: Sequence[Row]) -> str | None:
    """Return the first column of tags, one per row; None if there is none."""
    return next((name for name in column_names(rows) if are_tags(cells(rows, name))), None)


def tags_error(where: str, what: str) -> UserError:
    """Make the error for tags of words where a label is expected."""
    return UserError(
        f"{where}: {what} are tags of words, not classes. For a task that marks entities, add a column 'sentence_id' "
        "with the number of the sentence of each word (and name the words with --text-column, the tags with "
        "--label-column), or give lists of tokens and tags. A file with a blank line after each sentence needs no "
        "header and the ending .conll."
    )
