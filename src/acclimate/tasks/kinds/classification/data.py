"""Classification tasks: texts or pairs of texts with one label or any number of labels each. Every row is checked."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.data.rows import check_characters, short_place
from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel
from acclimate.evaluation.significance import number_groups
from acclimate.tasks.drawing import Link, draw_places, link_rows
from acclimate.tasks.examples import Examples, TextExample
from acclimate.tasks.groups import ID_PATTERNS, find_grouping, group_text
from acclimate.tasks.kinds.classification.labels import label_name, leave_out_unlabelled, read_labels, similar_labels
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.sources import COLUMNS, Selected

log = logging.getLogger(__name__)
MIN_CLASSES_TO_WARN = 20
"""With more classes than this, and fewer than two train rows per class, a warning says so."""
WORD_TAG = re.compile(r"(?P<prefix>[BI])[-_.:/](?P<type>.+)")
"""Pattern of the tag of a word within an entity."""
YAML_WORDS = ("no", "yes", "on", "off", "n", "y")


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """A row without its labels."""

    where: str
    text: str
    second: str | None
    document: str | None


def build_task(name: str, selected: Selected, path: Path | None = None, split_seed: int | None = None) -> Task:
    """Check the rows of all splits against each other and number the labels.

    Args:
        name: Name of the task.
        selected: The rows of each split, with their groups.
        path: Where the task is, if it is a file or folder.
        split_seed: Random seed with which a missing test split is drawn from train; if there is no dev split either,
            that is drawn as well. None makes a missing test split an error.

    Raises:
        UserError: If a row cannot be used, which the message names, or the labels cannot be learned.
    """
    rows = leave_out_unlabelled(name, selected.rows)
    for split in ("train", "test") if split_seed is None else ("train",):
        if not rows[split]:
            raise UserError(f"The task '{name}' has no {split} rows.")
    pair = any(row.get("text_pair") not in (None, "") for _, row in rows["train"])
    read = {split: [parse_row(where, row, pair) for where, row in rows[split]] for split in SPLITS}
    found, multi_label = read_labels(
        {split: [(where, row["label"]) for where, row in rows[split]] for split in SPLITS}
    )
    labels = _sort_labels({label for names in found["train"] for label in names})
    if multi_label and not labels:
        raise UserError(f"No train row of the task '{name}' has a label.")
    _refuse_tags_of_words(name, rows["train"][0][0], labels)
    if len(labels) < 2 and not multi_label:
        raise UserError(
            f"All train rows of the task '{name}' have the label '{labels[0]}'; a task needs at least two."
        )
    numbers = {label: number for number, label in enumerate(labels)}
    examples: dict[str, list[Example]] = {}
    for split in SPLITS:
        has_documents = multi_label and all(row.document is not None for row in read[split])
        examples[split] = []
        for row, names in zip(read[split], found[split], strict=True):
            for label in names:
                if label not in numbers:
                    mark = " (-1 usually marks rows without a label: remove them)" if label == "-1" else ""
                    raise UserError(
                        f"{row.where}: the label '{label}' occurs in {split} but not in train, so it cannot be "
                        f"learned{mark}. Train has: {_preview_names(labels)}."
                    )
            places = tuple(sorted({numbers[label] for label in names}))
            document = row.document if has_documents else None
            group = selected.groups[row.where]
            examples[split].append(
                Example(
                    *(row.text, row.second, places if multi_label else places[0], document),
                    group=group,
                    row=short_place(row.where),
                )
            )
    examples = _join_documents(examples)
    _warn_about_labels(name, labels, len(rows["train"]))
    own = {"labels": labels, "path": path, "multi_label": multi_label}
    return Task.divided(name, examples, split_seed, group_name=selected.group_name, **own)


def _join_documents(examples: dict[str, list[Example]]) -> dict[str, list[Example]]:
    """Return examples with the same group for all rows of a document, which are scored as one, if groups are known."""
    every = [example for part in examples.values() for example in part]
    if all(None in (example.document, example.group) or example.document == example.group for example in every):
        return examples
    names = link_rows([Link(example.group, example.document) for example in every])
    known = (
        None if example.group is example.document is None else name for example, name in zip(every, names, strict=True)
    )
    return {split: [replace(example, group=next(known)) for example in part] for split, part in examples.items()}


def _refuse_tags_of_words(name: str, where: str, labels: Sequence[str]) -> None:
    """Check that labels are not tags of words, in a table with a word per row."""
    types: dict[str, set[str]] = {"B": set(), "I": set()}
    for match in map(WORD_TAG.fullmatch, labels):
        if match:
            types[match["prefix"]].add(match["type"])
    if "O" in labels and types["B"] & types["I"]:
        raise UserError(
            f"{where}: the labels of the task '{name}' ({_preview_names(labels)}) are tags of words. Add a column "
            "'sentence_id' with the number of the sentence of each word, or give lists of tokens and tags; then the "
            "task marks entities."
        )


def _warn_about_labels(name: str, labels: Sequence[str], rows: int) -> None:
    if alike := similar_labels(labels):
        log.warning(
            "The task '%s' has the labels '%s' and '%s', which look like one; they are two classes.", name, *alike
        )
    if len(labels) > max(MIN_CLASSES_TO_WARN, rows / 2):
        log.warning(
            "The task '%s' has %d classes in %d train rows. If the labels are numbers to predict, "
            "give --task-kind regression.",
            name,
            len(labels),
            rows,
        )


def parse_row(where: str, row: dict[str, Any], pair: bool) -> ParsedRow:
    """Check the texts of a row.

    Args:
        where: The location of the row, for messages.
        row: Its values by column.
        pair: Whether the rows of the task have two texts.

    Raises:
        UserError: If a column is missing, or a text cannot be used.
    """
    for column in COLUMNS:
        if column not in row:
            raise UserError(
                f"{where}: no column '{column}'. The columns are: {_preview_names(map(str, row)) or 'none'}; "
                f"rename the right one to '{column}'."
            )
    text, second = row["text"], row.get("text_pair")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: 'text' must be a non-empty string; fix or remove the row.")
    if "text_pair" in row and second in (None, ""):  # CSV cannot distinguish the two
        second = "" if pair else None
    if second is not None and not isinstance(second, str):
        raise UserError(f"{where}: 'text_pair' must be a string.")
    check_characters(where, text, second or "")
    if (second is not None) != pair:
        state = (
            "has no 'text_pair', but other rows have one" if pair else "has a 'text_pair', but other rows have none"
        )
        raise UserError(f"{where}: {state}; give one to every row or to none.")
    return ParsedRow(where, text, second, document_of(row))


def document_of(row: Mapping[str, Any]) -> str | None:
    """Return the document of a row: its ``document``, else the one in its ``id``, else None."""
    try:
        if (document := group_text(row.get("document"))) is not None:
            return document
    except ValueError:
        return None  # a list of something else
    match = ID_PATTERNS[0].fullmatch(str(row.get("id", "")))
    return match[1] if match else None


def _sort_labels(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _preview_names(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "")


@dataclass(frozen=True, slots=True)
class Example(TextExample):
    """One labelled text, or pair of texts."""

    label: int | tuple[int, ...]
    """Index of the label in :attr:`Task.labels`; in a multi-label task the indices of all, ascending."""
    document: str | None = None
    """The document of the text, where a multi-label task is also scored per document; it can be finer than a group."""

    @property
    def places(self) -> tuple[int, ...]:
        """The indices of its labels as a tuple, whether the task is multi-label or not."""
        return (self.label,) if isinstance(self.label, int) else self.label

    @staticmethod
    def strata(examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Return the numbers of the labels."""
        return [example.places for example in examples]


@dataclass(frozen=True, repr=False)
class Task(Examples[Example]):
    """A classification task.

    The order of the labels depends on the train labels alone: numerical if all are integers, else alphabetical.
    """

    task_kind: ClassVar[str] = "classification"
    default_length: ClassVar[int] = 128
    drawn_by: ClassVar[str] = "every class in proportion"

    _: KW_ONLY
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
            UserError: As :func:`acclimate.data.task_kinds.load_task`.
        """
        splits = {"train": train, "dev": dev, "test": test}
        rows = {
            split: [(f"{name}/{split}: row {number}", dict(row)) for number, row in enumerate(given, 1)]
            for split, given in splits.items()
        }
        grouping = find_grouping(name, rows, taken=(*COLUMNS, "text_pair"))
        groups = {where: grouping.of(row) for found in rows.values() for where, row in found}
        return build_task(name, Selected(rows, groups, grouping.name))

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
            return SingleLabel(self._numbers(negative or ()), **self.grouping(split))
        if negative:
            raise UserError(f"'{self.name}' has lists of labels, so 'negative' does not apply; remove it.")
        documents = [example.document for example in getattr(self, split)]
        if None in documents:
            return MultiLabel(len(self.labels), **self.grouping(split))
        return MultiLabel(len(self.labels), tuple(number_groups(documents)), **self.grouping(split))

    def _numbers(self, labels: Sequence[str]) -> tuple[int, ...]:
        numbers = set()
        for given in labels:
            label = given if given in self.labels else label_name("negative", given)
            if label not in self.labels:
                error = unknown_name_error(f"negative label of the task '{self.name}'", given, self.labels)
                is_yaml = label in ("true", "false") and any(name.lower() in YAML_WORDS for name in self.labels)
                hint = (
                    " YAML reads no, yes, on and off as false and true unless they are in quotes." if is_yaml else ""
                )
                raise UserError(f"{error}{hint}")
            numbers.add(self.labels.index(label))
        if len(numbers) == len(self.labels):
            raise UserError(f"All labels of the task '{self.name}' are negative; leave at least one positive.")
        return tuple(sorted(numbers))

    def few_shot(self, count: int, seed: int) -> list[Example]:
        """Draw ``count`` train examples of each class, or all of a class that has fewer, in the order of the file.

        Those of a class are of as many groups as possible (:func:`acclimate.tasks.drawing.spread_groups`).

        In a multi-label task the examples without a label are a further class. An example that is drawn for several
        labels occurs once, so a label can have more than ``count`` examples.

        Raises:
            UserError: If ``count`` is below one.
        """
        self._check_few_shot(count)
        members: dict[int, list[int]] = {label: [] for label in range(len(self.labels) + self.multi_label)}
        for place, example in enumerate(self.train):
            for label in example.places or (len(self.labels),):
                members[label].append(place)
        kept: set[int] = set()
        for label, places in members.items():
            # Each class has its own generator, so that adding an example to one does not affect the draws of others.
            kept.update(draw_places(self.train, places, count, random.Random(f"{seed}/{label}")))
        return [self.train[place] for place in sorted(kept)]
