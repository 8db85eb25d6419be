"""Labels in the forms that files and libraries give them: numbers, booleans, lists, arrays, vectors of 0 and 1.

The same labels give the same classes whether they come from CSV, where everything is text, from JSON or from Parquet.
Labels that could be read in two ways, and numbers with a fraction, which are scores, are errors.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import pairwise, takewhile
from typing import Any

from acclimate.base.errors import UserError, warn_once
from acclimate.data.rows import LONE_SURROGATE, NoLabel, Row, RowError, is_missing, short_place

Labels = tuple[str, ...]
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
NOT_A_LABEL = ("nan", "<na>", "nat", "inf", "-inf", "infinity", "-infinity", "#n/a")
"""How libraries and Excel write missing and infinite numbers as text, in lower case."""
ABSENT = ("na", "n/a", "null", "none", "-")
"""How R, SQL and people write that there is no value, in lower case; where the classes are words, it can be one."""
NO_CLASS = ("-1", "-1.0", "-100", "-100.0", "-")
"""How data sets mark rows without a label; where the classes are not words, all but -100 can be one of them."""
MAX_UNLABELLED = 0.05
"""Where -1 next to 0 and 1 has a smaller share of the rows, it is probably no class."""
PRINTED_ARRAY = re.compile(r"\[[\s\d.,+e-]++\]|\[(?=[^,]*,).*\]|(array|tensor|set|frozenset)\(.*\)", re.DOTALL)
MAX_PRINTED_CHARACTERS = 10_000
"""A longer text is not taken for a printed list."""
SEPARATORS = "|;,"
MIN_TYPO, FREQUENT = 4, 10
"""Characters of a label that can be a typo, and rows of the label that was meant."""


def label_name(where: str, value: Any) -> str:
    """Return the class that a label names.

    Whole numbers are written without a fraction and booleans in lower case, also where they are text, as in CSV.

    Raises:
        RowError: If the value is not the name of a class.
    """

    def error(why: str = "") -> RowError:
        message = f"the label must be a string, an integer or true/false, not {value!r:.40}{why}"
        return RowError(where, "whose label is no class", message)

    text = str(value).strip()
    if isinstance(value, bool) or (isinstance(value, str) and text.lower() in ("true", "false")):
        return text.lower()
    if is_missing(value):
        raise RowError(where, "without a label")
    if not isinstance(value, str | int | float):
        raise error()
    if text.lower() in NOT_A_LABEL:
        what = f"the label {text!r} is how libraries write a missing or infinite number; a class needs another name"
        raise RowError(where, "with a missing or infinite number as the label", what)
    if LONE_SURROGATE.search(text):
        raise error()
    if isinstance(value, int) or not NUMBER.fullmatch(text) or text.lstrip("+-").isdigit():
        return text
    if "," in text:
        raise error("; write several labels as a list, and numbers without a comma")
    if not float(text).is_integer():
        raise error(": numbers with a fraction are scores, not classes; give the classes names")
    return str(int(float(text)))


def plain_value(where: str, value: Any) -> Any:
    """Return a label as plain values; arrays, sets, and lists that were written as text are lists.

    Raises:
        RowError: If a text looks like a list and cannot be parsed.
    """
    value = value.value if isinstance(value, Enum) else value
    if hasattr(value, "tolist"):  # scalars and arrays of numpy, pandas and torch
        return value.tolist()
    if type(value).__name__ == "Decimal":
        return float(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    text = value.strip() if isinstance(value, str) and len(value) <= MAX_PRINTED_CHARACTERS else ""
    parsed = None
    if text[:1] + text[-1:] in ("[]", "()", "{}"):
        for parse in (json.loads, ast.literal_eval):
            try:
                parsed = parse(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                continue
            if not isinstance(parsed, list | tuple | dict | set):
                return value
            if parse is ast.literal_eval and _has_adjacent_strings(text):
                break
            return sorted(parsed, key=str) if isinstance(parsed, set) else parsed
    if PRINTED_ARRAY.fullmatch(text) or (text and parsed is not None):
        what = f'the label {text:.40} cannot be read as a list; write it as in ["a", "b"]'
        raise RowError(where, "whose label is no list", what)
    return value


def plain_or_given(value: Any) -> Any:
    """Return :func:`plain_value`, or the value as it is if it only looks like a list, as a text in brackets does."""
    with suppress(RowError):
        return plain_value("", value)
    return value


def _has_adjacent_strings(text: str) -> bool:
    """Return whether Python joins strings of a list, as in a printed array, which has no commas."""
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type != tokenize.NL]
    return any(one == other == tokenize.STRING for one, other in pairwise(kinds))


def leave_out_unlabelled(name: str, rows: Mapping[str, list[Row]], strict: bool = False) -> dict[str, list[Row]]:
    """Return the rows that have a label; report the number of the others, whatever their share.

    A row has none where the label is a :class:`acclimate.tasks.readers.NoLabel`, or one of :data:`NO_CLASS` while
    labels of train are words, or one of :data:`ABSENT` while they are numbers, or -100, which libraries leave out of
    a loss.

    Raises:
        UserError: If there is such a row and the reading is strict.
    """
    given = [row.get("label") for _, row in rows["train"]]
    texts = [label.strip() for label in given if isinstance(label, str)]
    named = any(any(map(str.isalpha, text)) and text.lower() not in ABSENT + NOT_A_LABEL for text in texts)
    has_numbers = any(isinstance(label, int | float) for label in given) or any(map(NUMBER.fullmatch, texts))
    marks = NO_CLASS if named else (*NO_CLASS[2:4], *(ABSENT if has_numbers else ()))

    def is_mark(label: Any) -> bool:
        is_plain = isinstance(label, str | int | float)
        return isinstance(label, NoLabel) or (is_plain and str(label).strip().lower() in marks)

    kept = {split: [one for one in found if not is_mark(one[1].get("label"))] for split, found in rows.items()}
    left = {split: len(found) - len(kept[split]) for split, found in rows.items()}
    if counts := ", ".join(f"{count:,} {split}" for split, count in left.items() if count):
        where, row = next(one for found in rows.values() for one in found if is_mark(one[1].get("label")))
        mark = "" if isinstance(row["label"], NoLabel) else f", marked by '{row['label']}'"
        what = f"Rows of the task '{name}' without a label (first: {short_place(where)}{mark})"
        if strict:
            raise UserError(f"{what}: {counts}; label or remove them, since 'strict' is given.")
        warn_once(f"{what}, which are left out: {counts}.")
    return kept


Read = tuple[str, list[tuple[Any, str]]]
"""The location of a row, and each of its labels: as it is written, and the class that it names."""


def holds_lists(rows: Sequence[Row]) -> bool:
    """Return whether most labels of rows are lists, so that the task is multi-label; missing labels do not count."""
    lists = 0
    for where, row in rows:
        with suppress(RowError):
            value = plain_value(where, row.get("label"))
            lists += 0 if is_missing(value) else 1 if isinstance(value, list | tuple) else -1
    return lists > 0


def read_label(where: str, value: Any, multi_label: bool) -> Read:
    """Read the label of a row.

    Raises:
        RowError: If there is none, or it cannot be used.
    """
    value = plain_value(where, value)
    if is_missing(value):
        raise RowError(where, "without a label")
    if isinstance(value, list | tuple) != multi_label:
        state = "is not a list, but those of most rows are" if multi_label else "is a list, but those of most are not"
        raise RowError(where, "whose label has another form", f"the label {state}; an empty list is one, too")
    entries = list(value) if multi_label else [value]
    if any(isinstance(entry, NoLabel) for entry in entries):
        raise RowError(where, "whose label is no class", "-1 is none of the classes of the data set")
    return where, [(entry, label_name(where, entry)) for entry in entries]


def read_labels(
    rows: Mapping[str, Sequence[Read]], multi_label: bool, merge: bool = False
) -> tuple[dict[str, list[Labels]], bool]:
    """Return the classes of each row of each split, and whether the task is multi-label.

    Args:
        rows: The labels of each row, by split.
        multi_label: Whether labels are lists. Lists of the same length that hold only 0 and 1 are vectors with a place
            per class; if each of them has exactly one 1, the task has one class per row.
        merge: Whether a class may be written in several ways.

    Raises:
        UserError: If the labels could be read in two ways.
    """
    labels: dict[str, list[Labels]] = {}
    for split, given in rows.items():
        written: dict[str, str] = {}
        for where, entries in given:
            for entry, name in entries:
                spelling = entry.strip() if isinstance(entry, str) else name
                if isinstance(entry, str) and written.setdefault(name, spelling) != spelling and not merge:
                    raise UserError(
                        f"{where}: the label '{spelling}' is '{written[name]}' in another row; write it in one way, "
                        "or give --merge-labels."
                    )
        labels[split] = [tuple(name for _, name in entries) for _, entries in given]
    if multi_label:
        return _read_vectors(rows, labels)
    _check_single_labels(Counter(names[0] for names in labels["train"]))
    return labels, False


def _read_vectors(
    values: Mapping[str, Sequence[Read]], labels: dict[str, list[Labels]]
) -> tuple[dict[str, list[Labels]], bool]:
    """Replace vectors of 0 and 1 by the numbers of their classes; leave other lists as they are."""
    every = [names for given in labels.values() for names in given]
    values_used = {name for names in every for name in names}
    has_duplicates = any(len(set(names)) < len(names) for names in every)
    if values_used not in ({"0", "1"}, {"false", "true"}) and not (
        has_duplicates and values_used in ({"0"}, {"1"}, {"false"})
    ):
        return labels, True
    size = len(labels["train"][0])
    other = next((i for i, names in enumerate(every) if len(names) != size), None)
    if other is not None or size < 2:
        if has_duplicates:
            where = [where for given in values.values() for where, _ in given][other or 0]
            raise UserError(f"{where}: lists of 0 and 1 must all have the same length, a place per class.")
        return labels, True  # lists of the classes 0 and 1
    vectors = {
        split: [tuple(str(i) for i, name in enumerate(names) if name in ("1", "true")) for names in given]
        for split, given in labels.items()
    }
    return vectors, not all(len(names) == 1 for given in vectors.values() for names in given)


def _check_single_labels(counts: Counter[str]) -> None:
    """Check that single labels are not several in one, or marks of missing labels."""
    labels = set(counts)
    for separator in SEPARATORS:
        for label in sorted(labels):
            parts = {part.strip() for part in label.split(separator)}
            if len(parts) > 1 and parts <= labels:
                raise UserError(
                    f"The label '{label}' looks like several, since its parts are labels too; write lists of labels."
                )
        if moving := _moving_part(labels, separator):
            part, one, other = moving
            warn_once(
                f"The labels '{one:.40}' and '{other:.40}' have the part '{part:.40}' in different places, and each "
                'is one class. If they are several labels, write lists, as in ["a", "b"].'
            )
    if labels <= {"0", "1", "true", "false"} and labels & {"0", "1"} and labels & {"true", "false"}:
        raise UserError("Some labels are 0 or 1, others true or false; write all in one way.")
    is_rare = counts["-1"] < MAX_UNLABELLED * counts.total()
    numbers = {str(number) for number in range(-1, len(labels) - 1)}
    if "-1" in labels and labels == numbers and len(labels) > (2 if is_rare else 3):
        raise UserError(
            f"The label '-1' next to 0 to {len(labels) - 2} has {counts['-1']:,} of {counts.total():,} train rows and "
            "usually marks rows without a label; remove these rows, or give the classes names."
        )


def _moving_part(labels: Iterable[str], separator: str) -> tuple[str, str, str] | None:
    """Return a part that two labels have in different places, and the two; parts of a hierarchy keep their place."""
    seen: dict[str, tuple[int, str]] = {}
    for label in sorted(labels):
        for place, part in enumerate(one.strip() for one in label.split(separator)):
            before, other = seen.setdefault(part, (place, label))
            if part and before != place and label != other:
                return part, other, label
    return None


def similar_labels(train: Mapping[str, int], others: Iterable[str] = ()) -> dict[str, str]:
    """Return labels that look like another one, each with the spelling of that which is most frequent.

    Labels look alike that differ only in case, blanks, width or Unicode form; and a label of a single row looks like a
    frequent one from which a letter distinguishes it.

    Args:
        train: The number of train rows of each label.
        others: Further labels, of other splits.
    """
    groups: dict[str, list[str]] = {}
    for label in sorted({*train, *others}, key=lambda label: (-train.get(label, 0), label)):
        groups.setdefault("".join(unicodedata.normalize("NFKC", label).casefold().split()), []).append(label)
    found = {label: first for first, *more in groups.values() for label in more}
    sizes = {form: sum(train.get(label, 0) for label in labels) for form, labels in groups.items()}
    for form in (form for form, size in sizes.items() if size == 1 and len(form) >= MIN_TYPO):
        alike = (one for one, size in sizes.items() if size >= FREQUENT and _is_typo(form, one))
        if near := max(alike, key=sizes.__getitem__, default=None):
            found |= dict.fromkeys(groups[form], groups[near][0])
    return found


def _is_typo(one: str, other: str) -> bool:
    """Return whether a letter is inserted, missing or replaced, or two are exchanged, but not at the end (grade A)."""

    def same(pairs: Iterable[tuple[str, str]]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    start = same(zip(one, other, strict=False))
    end = min(same(zip(one[::-1], other[::-1], strict=False)), min(len(one), len(other)) - start)
    parts = one[start : len(one) - end], other[start : len(other) - end]
    return (
        end > 0
        and "".join(parts).isalpha()
        and (max(map(len, parts)) == 1 or (len(parts[0]) == 2 and parts[0] == parts[1][::-1]))
    )
