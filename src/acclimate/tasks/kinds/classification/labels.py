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
from itertools import pairwise
from typing import Any

from acclimate.base.errors import UserError, warn_once
from acclimate.data.rows import NoLabel, Row

Labels = tuple[str, ...]
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
NOT_A_LABEL = ("nan", "<na>", "nat", "inf", "-inf", "infinity", "-infinity")
"""How libraries write missing and infinite numbers as text."""
NO_CLASS = ("-1", "-1.0", "-100", "-100.0", "-")
"""How data sets mark rows without a label; where the classes are not words, all but -100 can be one of them."""
MAX_UNLABELLED = 0.05
"""Where -1 next to 0 and 1 has a smaller share of the rows, it is probably no class."""
PRINTED_ARRAY = re.compile(r"\[[\s\d.,+e-]++\]|\[(?=[^,]*,).*\]|(array|tensor|set|frozenset)\(.*\)", re.DOTALL)
MAX_PRINTED_CHARACTERS = 10_000
"""A longer text is not taken for a printed list."""
SEPARATORS = "|;,"


def label_name(where: str, value: Any) -> str:
    """Return the class that a label names.

    Whole numbers are written without a fraction and booleans in lower case, also where they are text, as in CSV.

    Raises:
        UserError: If the value is not the name of a class.
    """

    def error(why: str = "") -> UserError:
        return UserError(f"{where}: the label must be a string, an integer or true/false, not {value!r:.40}{why}.")

    text = str(value).strip()
    if isinstance(value, bool) or (isinstance(value, str) and text.lower() in ("true", "false")):
        return text.lower()
    if not isinstance(value, str | int | float):
        raise error()
    if not text:
        raise UserError(f"{where}: the label is empty; fix or remove the row.")
    if text.lower() in NOT_A_LABEL:
        raise UserError(
            f"{where}: the label {text!r} is how libraries write a missing or infinite number. Remove rows without a "
            "label; if it is a class, give it another name."
        )
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
        UserError: If a text looks like a list and cannot be parsed.
    """
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
        raise UserError(f'{where}: the label {text:.40} cannot be read as a list; write it as in ["a", "b"].')
    return value


def _has_adjacent_strings(text: str) -> bool:
    """Return whether Python joins strings of a list, as in a printed array, which has no commas."""
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type != tokenize.NL]
    return any(one == other == tokenize.STRING for one, other in pairwise(kinds))


def leave_out_unlabelled(name: str, rows: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """Return the rows that have a label; report the number of the others.

    A row has none where the label is a :class:`acclimate.tasks.readers.NoLabel`, or one of :data:`NO_CLASS` while
    labels of train are words, or -100, which libraries leave out of a loss.
    """
    given = [row.get("label") for _, row in rows["train"]]
    named = any(isinstance(label, str) and any(map(str.isalpha, label)) for label in given)
    marks = NO_CLASS if named else NO_CLASS[2:4]
    kept = {
        split: [
            (where, row)
            for where, row in found
            if not isinstance(label := row.get("label"), NoLabel)
            and not (isinstance(label, str | int | float) and str(label).strip() in marks)
        ]
        for split, found in rows.items()
    }
    left = {split: len(found) - len(kept[split]) for split, found in rows.items()}
    if counts := ", ".join(f"{count:,} {split}" for split, count in left.items() if count):
        warn_once(f"Rows of the task '{name}' without a label (such as -1), which are left out: {counts}.")
    return kept


def read_labels(rows: Mapping[str, Sequence[tuple[str, Any]]]) -> tuple[dict[str, list[Labels]], bool]:
    """Return the classes of each row of each split, and whether the task is multi-label.

    Args:
        rows: The location, for messages, and the label of each row, by split. A task is multi-label if the first label
            of train is a list. Lists of the same length that hold only 0 and 1 are vectors with a place per class;
            if each of them has exactly one 1, the task has one class per row.

    Raises:
        UserError: If a label cannot be used or could be read in two ways.
    """
    values = {split: [(where, plain_value(where, value)) for where, value in given] for split, given in rows.items()}
    multi_label = bool(values["train"]) and isinstance(values["train"][0][1], list | tuple)
    labels: dict[str, list[Labels]] = {}
    for split, given in values.items():
        written: dict[str, str] = {}
        labels[split] = []
        for where, value in given:
            if isinstance(value, list | tuple) != multi_label:
                state = (
                    "the label is not a list, but that of the first train row is"
                    if multi_label
                    else "the label is a list, but that of the first train row is not"
                )
                raise UserError(f"{where}: {state}; give every row a list (an empty one, too) or none of them.")
            entries = list(value) if multi_label else [value]
            if any(isinstance(entry, NoLabel) for entry in entries):
                raise UserError(f"{where}: -1 is none of the classes of the data set; remove it from the list.")
            names = tuple(label_name(where, entry) for entry in entries)
            for entry, name in zip(entries, names, strict=True):
                spelling = entry.strip() if isinstance(entry, str) else name
                if isinstance(entry, str) and written.setdefault(name, spelling) != spelling:
                    other = written[name]
                    raise UserError(
                        f"{where}: the label '{spelling}' is '{other}' in another row; write it in one way."
                    )
            labels[split].append(names)
    if multi_label:
        return _read_vectors(values, labels)
    _check_single_labels(Counter(names[0] for names in labels["train"]))
    return labels, False


def _read_vectors(
    values: Mapping[str, Sequence[tuple[str, Any]]], labels: dict[str, list[Labels]]
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
    if labels <= {"0", "1", "true", "false"} and labels & {"0", "1"} and labels & {"true", "false"}:
        raise UserError("Some labels are 0 or 1, others true or false; write all in one way.")
    is_rare = counts["-1"] < MAX_UNLABELLED * counts.total()
    numbers = {str(number) for number in range(-1, len(labels) - 1)}
    if "-1" in labels and labels == numbers and len(labels) > (2 if is_rare else 3):
        raise UserError(
            f"The label '-1' next to 0 to {len(labels) - 2} has {counts['-1']:,} of {counts.total():,} train rows and "
            "usually marks rows without a label; remove these rows, or give the classes names."
        )


def similar_labels(labels: Iterable[str]) -> tuple[str, str] | None:
    """Return two labels that differ only in case, width or Unicode form; None if there are none."""
    seen: dict[str, str] = {}
    for label in labels:
        other = seen.setdefault(unicodedata.normalize("NFKC", label).casefold(), label)
        if other != label:
            return other, label
    return None
