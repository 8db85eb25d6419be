"""Classification tasks: texts or pairs of texts with one label or any number of labels each. Every row is checked."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.data.rows import LeftOut, Row, RowError, check_characters, check_text, is_missing, short_place
from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel
from acclimate.evaluation.significance import number_groups
from acclimate.tasks.drawing import Link, draw_places, link_rows
from acclimate.tasks.examples import Examples, TextExample
from acclimate.tasks.groups import ID_PATTERNS, find_grouping, group_text
from acclimate.tasks.kinds.classification.labels import (
    Labels,
    holds_lists,
    label_name,
    leave_out_unlabelled,
    read_label,
    read_labels,
    similar_labels,
)
from acclimate.tasks.readers import SPLITS
from acclimate.tasks.sources import COLUMNS, Selected
from acclimate.tasks.values import are_tags, tags_error

log = logging.getLogger(__name__)
MIN_CLASSES_TO_WARN = 20
"""With more classes than this, and fewer than two train rows per class, a warning says so."""
MAX_CONTRADICTIONS = 0.01
"""Share of train texts with different labels that is not worth a warning."""
YAML_WORDS = ("no", "yes", "on", "off", "n", "y")


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """A row without its labels."""

    where: str
    text: str
    second: str | None
    document: str | None


def build_task(
    name: str, selected: Selected, path: Path | None = None, split_seed: int | None = None, merge: bool = False
) -> Task:
    """Check the rows of all splits against each other and number the labels.

    Args:
        name: Name of the task.
        selected: The rows of each split, with their groups.
        path: Where the task is, if it is a file or folder.
        split_seed: Random seed with which a missing test split is drawn from train; if there is no dev split either,
            that is drawn as well. None makes a missing test split an error.
        merge: Whether labels that look alike are one.

    Raises:
        UserError: If too many rows cannot be used, or the labels cannot be learned.
    """
    rows = leave_out_unlabelled(name, selected.rows, selected.left.strict)
    for split in ("train", "test") if split_seed is None else ("train",):
        if not rows[split]:
            raise UserError(f"The task '{name}' has no {split} rows.")
    pair, several = check_columns(rows), holds_lists(rows["train"])
    left = selected.left
    parsed = {
        split: left.read(
            split, rows[split], lambda row: (parse_row(*row, pair), read_label(row[0], row[1].get("label"), several))
        )
        for split in SPLITS
    }
    if not parsed["train"]:
        left.report(parsed)  # raises
    read = {split: [row for row, _ in found] for split, found in parsed.items()}
    found, multi_label = read_labels(
        {split: [label for _, label in found] for split, found in parsed.items()}, several, merge
    )
    if merge:
        found = _merge_labels(name, found)
    labels = sort_labels({label for names in found["train"] for label in names})
    _leave_out_unknown(left, labels, read, found)
    left.report(read)
    if multi_label and not labels:
        raise UserError(f"No train row of the task '{name}' has a label.")
    if are_tags([label for names in found["train"] for label in names]):
        raise tags_error(rows["train"][0][0], f"the labels of the task '{name}' ({_preview_names(labels)})")
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
    _warn_about_labels(name, labels, found["train"])
    _warn_about_contradictions(name, read["train"], found["train"])
    own = {"labels": labels, "path": path, "multi_label": multi_label}
    return Task.divided(name, examples, split_seed, group_name=selected.group_name, **own)


def check_columns(rows: Mapping[str, Sequence[Row]]) -> bool:
    """Check that some row of each split has a text and a label; return whether rows are pairs of texts.

    Raises:
        UserError: If a column is missing.
    """
    for found in rows.values():
        for column in COLUMNS:
            if found and not any(column in row for _, row in found):
                where, row = found[0]
                raise UserError(
                    f"{where}: no column '{column}'. The columns are: {_preview_names(map(str, row)) or 'none'}; "
                    f"rename the right one to '{column}'."
                )
    filled = any(not is_missing(row.get("text_pair")) for _, row in rows["train"])
    return filled and 2 * sum("text_pair" in row for _, row in rows["train"]) > len(rows["train"])


def _leave_out_unknown(
    left: LeftOut, labels: Sequence[str], read: dict[str, list[ParsedRow]], found: dict[str, list[Labels]]
) -> None:
    """Leave out rows of dev and test with a label that train does not have, and so cannot be learned."""
    known = set(labels)

    def check(row: tuple[ParsedRow, Labels]) -> tuple[ParsedRow, Labels]:
        if unknown := next((label for label in row[1] if label not in known), None):
            mark = " (-1 usually marks rows without a label)" if unknown == "-1" else ""
            what = f"the label '{unknown}' does not occur in train{mark}, which has {_preview_names(labels)}"
            raise RowError(row[0].where, "with a label that train does not have", what)
        return row

    for split in ("dev", "test"):
        kept = left.read(split, zip(read[split], found[split], strict=True), check)
        read[split], found[split] = [row for row, _ in kept], [names for _, names in kept]


def _merge_labels(name: str, found: Mapping[str, list[Labels]]) -> dict[str, list[Labels]]:
    """Return labels in which those that look like another one are that; report their numbers."""
    counts = Counter(label for part in found.values() for names in part for label in names)
    merged = similar_labels(Counter(label for names in found["train"] for label in names), counts)
    if merged:
        listed = ", ".join(f"'{label}' ({counts[label]:,} rows) into '{into}'" for label, into in merged.items())
        warn_once(f"Labels of the task '{name}' that are merged: {listed}.")
    return {split: [tuple(merged.get(one, one) for one in names) for names in part] for split, part in found.items()}


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


def _warn_about_labels(name: str, labels: Sequence[str], train: Sequence[Labels]) -> None:
    counts, rows = Counter(label for names in train for label in names), len(train)
    if alike := similar_labels(counts):
        listed = ", ".join(
            f"'{label}' ({counts[label]:,} rows) and '{other}' ({counts[other]:,})" for label, other in alike.items()
        )
        log.warning(
            "The task '%s' has labels that look like one and are two classes: %s. --merge-labels makes each the more "
            "frequent one.",
            name,
            listed,
        )
    if len(labels) > max(MIN_CLASSES_TO_WARN, rows / 2):
        log.warning(
            "The task '%s' has %d classes in %d train rows. If the labels are numbers to predict, "
            "give --task-kind regression.",
            name,
            len(labels),
            rows,
        )


def _warn_about_contradictions(name: str, rows: Sequence[ParsedRow], labels: Sequence[Labels]) -> None:
    """Say how many train texts have different labels in different rows, if those are more than a few."""
    first: dict[tuple[str, str | None], tuple[ParsedRow, set[str]]] = {}
    differing: dict[tuple[str, str | None], ParsedRow] = {}
    for row, names in zip(rows, labels, strict=True):
        if first.setdefault((row.text, row.second), (row, set(names)))[1] != set(names):
            differing.setdefault((row.text, row.second), row)
    if len(differing) > MAX_CONTRADICTIONS * len(first):
        key, row = next(iter(differing.items()))
        places = f"{short_place(first[key][0].where)} and {short_place(row.where)}"
        warn_once(
            f"{len(differing):,} of {len(first):,} train texts of the task '{name}' have different labels in "
            f"different rows, which no model can learn (first: {places})."
        )


def parse_row(where: str, row: dict[str, Any], pair: bool) -> ParsedRow:
    """Check the texts of a row.

    Args:
        where: The location of the row, for messages.
        row: Its values by column.
        pair: Whether the rows of the task have two texts.

    Raises:
        RowError: If a text is missing or cannot be used.
    """
    text, second = check_text(where, row.get("text")), row.get("text_pair")
    if second == "" or (is_missing(second) and not isinstance(second, str)):  # CSV cannot distinguish the two
        second = "" if pair and "text_pair" in row else None
    elif not isinstance(second, str):
        raise RowError(where, "whose second text is not a string", f"'text_pair' is {second!r:.40}")
    check_characters(where, second or "")
    if (second is not None) != pair:
        state = "without a second text" if pair else "with a second text"
        raise RowError(where, state, f"the row has {'no' if pair else 'a'} 'text_pair', other than most rows")
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


def sort_labels(labels: set[str]) -> list[str]:
    """Return labels in numerical order if all are integers, else in alphabetical order."""
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
        strict: bool = False,
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
        return build_task(name, Selected(rows, groups, grouping.name, LeftOut(name, strict)))

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
