"""From the rows of a task's files to a classification task: every row is checked, none is dropped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from acclimate.tasks.data import Example, Task
from acclimate.tasks.folders import SPLITS, find_split
from acclimate.tasks.rows import FORMATS, Row, read_rows

SENTENCE = re.compile(r"(.+)_s\d+")
"""The ``id`` of the n-th sentence of a document, as in Hallmarks of Cancer: the document, ``_s`` and n."""


def read_task(folder: Path, name: str) -> Task:
    """Read the files of a classification task: see :func:`acclimate.tasks.load_task`."""
    files = {split: find_split(folder, split, FORMATS) for split in SPLITS}
    rows: dict[str, list[Row]] = {split: list(read_rows(file)) if file else [] for split, file in files.items()}
    for split, file in files.items():
        if file and not rows[split]:
            raise UserError(f"'{file}' holds no rows.")
    return build_task(name, rows, folder)


@dataclass(frozen=True, slots=True)
class _Read:
    """A row whose labels have no numbers yet."""

    where: str
    text: str
    second: str | None
    labels: tuple[str, ...]
    document: str | None


def build_task(name: str, rows: Mapping[str, list[Row]], path: Path | None = None) -> Task:
    """Check the rows of all splits against each other and number the labels.

    Raises:
        UserError: Naming the row that cannot be used, or why the labels cannot be learnt.
    """
    for split in ("train", "test"):
        if not rows[split]:
            raise UserError(f"The task '{name}' has no {split} rows.")
    first = rows["train"][0][1]
    pair, several = first.get("text_pair") is not None, isinstance(first.get("label"), list | tuple)
    read = {split: [_read(where, row, pair, several) for where, row in rows[split]] for split in SPLITS}
    labels = _ordered({label for row in read["train"] for label in row.labels})
    if several and not labels:
        raise UserError(f"No train row of the task '{name}' has a label, so there is nothing to learn.")
    if len(labels) < 2 and not several:
        raise UserError(f"All train rows of the task '{name}' have the label '{labels[0]}'; it takes at least two.")
    numbers = {label: number for number, label in enumerate(labels)}
    examples: dict[str, list[Example]] = {}
    for split in SPLITS:
        for row in read[split]:
            for label in row.labels:
                if label not in numbers:
                    raise UserError(
                        f"{row.where}: the label '{label}' occurs in {split} but not in train, so it cannot be "
                        f"learnt. Train has: {_some(labels)}."
                    )
        whole = several and all(row.document is not None for row in read[split])
        examples[split] = [_example(row, numbers, several, whole) for row in read[split]]
    return Task(name, examples["train"], examples["test"], labels, examples["dev"], path, several)


def _example(row: _Read, numbers: Mapping[str, int], several: bool, whole: bool) -> Example:
    places = tuple(sorted({numbers[label] for label in row.labels}))
    return Example(row.text, row.second, places if several else places[0], row.document if whole else None)


def _read(where: str, row: dict[str, Any], pair: bool, several: bool) -> _Read:
    for column in ("text", "label"):
        if column not in row:
            raise UserError(
                f"{where}: no column '{column}'. The columns are: {_some(map(str, row)) or 'none'}; "
                f"rename the one that holds it to '{column}'."
            )
    text, second = row["text"], row.get("text_pair")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: 'text' must be a text that is not empty; mend or remove the row.")
    if second is not None and not isinstance(second, str):
        raise UserError(f"{where}: 'text_pair' must be a text.")
    if any("\ud800" <= letter <= "\udfff" for letter in text + (second or "")):
        raise UserError(f"{where}: the text holds half of a surrogate pair, which is no letter; mend the row.")
    if (second is not None) != pair:
        state = (
            "has no 'text_pair', but the first train row has"
            if pair
            else "has a 'text_pair', the first train row none"
        )
        raise UserError(f"{where}: {state}; give one to every row or to none.")
    value = row["label"]
    if isinstance(value, list | tuple) != several:
        state = (
            "the label is no list, but that of the first train row is"
            if several
            else "the label is a list, but that of the first train row is none"
        )
        raise UserError(f"{where}: {state}; give every row a list (an empty one, too) or none of them.")
    labels = tuple(_label(where, entry) for entry in value) if several else (_label(where, value),)
    return _Read(where, text, second, labels, _document(row) if several else None)


def _document(row: Mapping[str, Any]) -> str | None:
    """Return what a row is a part of: its ``document``, else what its ``id`` says (:data:`SENTENCE`)."""
    if row.get("document") not in (None, ""):
        return str(row["document"])
    match = SENTENCE.fullmatch(str(row.get("id", "")))
    return match.group(1) if match else None


def _label(where: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # whole numbers come as floats out of tables with gaps elsewhere
    if not isinstance(value, str | int):
        raise UserError(f"{where}: the label must be a string, a whole number or true/false, not {value!r:.40}.")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not label:
        raise UserError(f"{where}: the label is empty; mend or remove the row.")
    return label


def _ordered(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "")
