"""Classification tasks: texts or pairs of texts with one label or any number of labels each. Every row is checked."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from acclimate.errors import UserError, unknown_name_error
from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel
from acclimate.tasks.readers import FORMATS, SPLITS, Row, find_split_file, read_rows

SENTENCE_ID = re.compile(r"(.+)_s\d+")
"""Pattern of the ``id`` of the n-th sentence of a document, as in Hallmarks of Cancer: the document, ``_s`` and n."""


def read_task(folder: Path, name: str) -> Task:
    """Read the files of a classification task: see :func:`acclimate.tasks.load_task`."""
    files = {split: find_split_file(folder, split, FORMATS) for split in SPLITS}
    rows: dict[str, list[Row]] = {split: list(read_rows(file)) if file else [] for split, file in files.items()}
    for split, file in files.items():
        if file and not rows[split]:
            raise UserError(f"'{file}' holds no rows.")
    return build_task(name, rows, folder)


@dataclass(frozen=True, slots=True)
class _ParsedRow:
    """A row whose labels are not numbered yet."""

    where: str
    text: str
    second: str | None
    labels: tuple[str, ...]
    document: str | None


def build_task(name: str, rows: Mapping[str, list[Row]], path: Path | None = None) -> Task:
    """Check the rows of all splits against each other and number the labels.

    Raises:
        UserError: If a row cannot be used, which the message names, or the labels cannot be learned.
    """
    for split in ("train", "test"):
        if not rows[split]:
            raise UserError(f"The task '{name}' has no {split} rows.")
    first = rows["train"][0][1]
    pair, multi_label = first.get("text_pair") is not None, isinstance(first.get("label"), list | tuple)
    read = {split: [_parse_row(where, row, pair, multi_label) for where, row in rows[split]] for split in SPLITS}
    labels = _sort_labels({label for row in read["train"] for label in row.labels})
    if multi_label and not labels:
        raise UserError(f"No train row of the task '{name}' has a label.")
    if len(labels) < 2 and not multi_label:
        raise UserError(
            f"All train rows of the task '{name}' have the label '{labels[0]}'; a task needs at least two."
        )
    numbers = {label: number for number, label in enumerate(labels)}
    examples: dict[str, list[Example]] = {}
    for split in SPLITS:
        for row in read[split]:
            for label in row.labels:
                if label not in numbers:
                    raise UserError(
                        f"{row.where}: the label '{label}' occurs in {split} but not in train, so it cannot be "
                        f"learned. Train has: {_preview_names(labels)}."
                    )
        has_documents = multi_label and all(row.document is not None for row in read[split])
        examples[split] = [_make_example(row, numbers, multi_label, has_documents) for row in read[split]]
    return Task(name, examples["train"], examples["test"], labels, examples["dev"], path, multi_label)


def _make_example(row: _ParsedRow, numbers: Mapping[str, int], multi_label: bool, has_documents: bool) -> Example:
    places = tuple(sorted({numbers[label] for label in row.labels}))
    return Example(row.text, row.second, places if multi_label else places[0], row.document if has_documents else None)


def _parse_row(where: str, row: dict[str, Any], pair: bool, multi_label: bool) -> _ParsedRow:
    for column in ("text", "label"):
        if column not in row:
            raise UserError(
                f"{where}: no column '{column}'. The columns are: {_preview_names(map(str, row)) or 'none'}; "
                f"rename the right one to '{column}'."
            )
    text, second = row["text"], row.get("text_pair")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: 'text' must be a non-empty string; fix or remove the row.")
    if second is not None and not isinstance(second, str):
        raise UserError(f"{where}: 'text_pair' must be a string.")
    if any("\ud800" <= letter <= "\udfff" for letter in text + (second or "")):
        raise UserError(f"{where}: the text contains half of a surrogate pair, which is not a character; fix the row.")
    if (second is not None) != pair:
        state = (
            "'text_pair' is missing, but the first train row has one"
            if pair
            else "there is a 'text_pair', but the first train row has none"
        )
        raise UserError(f"{where}: {state}; give every row one or none.")
    value = row["label"]
    if isinstance(value, list | tuple) != multi_label:
        state = (
            "the label is not a list, but that of the first train row is"
            if multi_label
            else "the label is a list, but that of the first train row is not"
        )
        raise UserError(f"{where}: {state}; give every row a list (an empty one, too) or none of them.")
    labels = tuple(_parse_label(where, entry) for entry in value) if multi_label else (_parse_label(where, value),)
    return _ParsedRow(where, text, second, labels, _document_id(row) if multi_label else None)


def _document_id(row: Mapping[str, Any]) -> str | None:
    """Return the document of a row: its ``document``, else the one in its ``id`` (:data:`SENTENCE_ID`), else None."""
    if row.get("document") not in (None, ""):
        return str(row["document"])
    match = SENTENCE_ID.fullmatch(str(row.get("id", "")))
    return match.group(1) if match else None


def _parse_label(where: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # integers are floats in columns with missing values
    if not isinstance(value, str | int):
        raise UserError(f"{where}: the label must be a string, an integer or true/false, not {value!r:.40}.")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not label:
        raise UserError(f"{where}: the label is empty; fix or remove the row.")
    return label


def _sort_labels(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _preview_names(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "")


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts."""

    text: str
    text_pair: str | None
    label: int | tuple[int, ...]
    """Index of the label in :attr:`Task.labels`; in a multi-label task the indices of all, ascending."""
    document: str | None = None
    """The document of the text, where a multi-label task is also scored per document."""

    @property
    def places(self) -> tuple[int, ...]:
        """The indices of its labels as a tuple, whether the task is multi-label or not."""
        return (self.label,) if isinstance(self.label, int) else self.label


@dataclass(frozen=True)
class Task:
    """A classification task.

    The order of the labels depends on the train labels alone: numerical if all are integers, else alphabetical.
    """

    task_kind: ClassVar[str] = "classification"
    default_length: ClassVar[int] = 128
    """Default maximum tokens per example."""

    name: str
    train: list[Example]
    test: list[Example]
    labels: list[str]
    dev: list[Example] = field(default_factory=list)
    path: Path | None = None
    multi_label: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        train: Iterable[Mapping[str, Any]],
        test: Iterable[Mapping[str, Any]],
        dev: Iterable[Mapping[str, Any]] = (),
    ) -> Task:
        """Create a task from rows ``{"text", "text_pair"?, "label", "document"?}`` in memory.

        Raises:
            UserError: As :func:`acclimate.tasks.load_task`.
        """
        splits = {"train": train, "dev": dev, "test": test}
        return build_task(
            name,
            {
                split: [(f"{name}/{split}: row {number}", dict(row)) for number, row in enumerate(rows, 1)]
                for split, rows in splits.items()
            },
        )

    @property
    def kind(self) -> str:
        """``"single_label"`` or ``"multi_label"``."""
        return MultiLabel.kind if self.multi_label else SingleLabel.kind

    @property
    def is_pair(self) -> bool:
        """Whether each row has two texts."""
        return self.train[0].text_pair is not None

    def scoring(self, split: str = "test", negative: Sequence[str] | None = None) -> Scoring:
        """Return how predictions for a split are scored.

        Args:
            split: ``"test"`` or ``"dev"``.
            negative: Labels that mean "none of these"; they add the metric ``positive_micro_f1``.

        Raises:
            UserError: If ``negative`` contains an unknown label or all labels, or the task is multi-label, where an
                empty list has that meaning.
        """
        if not self.multi_label:
            return SingleLabel(self._numbers(negative or ()))
        if negative:
            raise UserError(f"'{self.name}' has lists of labels, so 'negative' does not apply; remove it.")
        documents = [example.document for example in getattr(self, split)]
        if None in documents:
            return MultiLabel(len(self.labels))
        order = {name: number for number, name in enumerate(dict.fromkeys(documents))}
        return MultiLabel(len(self.labels), tuple(order[name] for name in documents))

    def _numbers(self, labels: Sequence[str]) -> tuple[int, ...]:
        for label in labels:
            if label not in self.labels:
                raise unknown_name_error(f"negative label of the task '{self.name}'", label, self.labels)
        if len(set(labels)) == len(self.labels):
            raise UserError(f"All labels of the task '{self.name}' are negative; leave at least one positive.")
        return tuple(sorted({self.labels.index(label) for label in labels}))

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything in the task that can change a result.

        That is the splits with their texts, labels and order as they were loaded, but not the name, the file format or
        unused columns. It does not change if the files change later.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for split in SPLITS:
            digest.update(f"\n{split}\n".encode())
            for example in getattr(self, split):
                values = [example.text, example.text_pair, example.label]
                values += [] if example.document is None else [example.document]
                digest.update(json.dumps(values).encode() + b"\n")
        return digest.hexdigest()

    def few_shot(self, count: int, seed: int) -> list[Example]:
        """Draw ``count`` train examples of each class, or all of a class that has fewer, in the order of the file.

        In a multi-label task the examples without a label are a further class. An example that is drawn for several
        labels occurs once, so a label can have more than ``count`` examples.

        Raises:
            UserError: If ``count`` is below one.
        """
        if count < 1:
            raise UserError(f"few_shot={count} leaves nothing to train on; it must be at least 1.")
        members: dict[int, list[int]] = {label: [] for label in range(len(self.labels) + self.multi_label)}
        for place, example in enumerate(self.train):
            for label in example.places or (len(self.labels),):
                members[label].append(place)
        kept: set[int] = set()
        for label, places in members.items():
            # Each class has its own generator, so that adding an example to one does not affect the draws of others.
            kept.update(random.Random(f"{seed}/{label}").sample(places, min(count, len(places))))
        return [self.train[place] for place in sorted(kept)]
