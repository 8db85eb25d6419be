"""Groups: rows of one document, patient, author or passage, which are not independent of each other.

A group stays in one split, and counts as one unit where results are resampled (Miller, 2024, "Adding error bars to
evals"). Where groups nest, such as sentences in documents, the coarsest known one is the unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.data.csv_reader import name_parts
from acclimate.data.rows import column_names, is_missing
from acclimate.evaluation.significance import connect, number_groups

GROUP_NAMES = {
    **{"patient": "patient", "patient_id": "patient", "author_id": "author"},
    **{"thread_id": "thread", "conversation_id": "conversation", "dialogue_id": "dialogue", "dialog_id": "dialogue"},
    **{"document": "document", "document_id": "document", "doc_id": "document"},
    **{"article_id": "article", "pmid": "article", "abstract_id": "abstract"},
}
"""Columns, in lower case, that can only be those of a group, the coarsest first, with what their groups are."""
ID_PATTERNS = (re.compile(r"(.+)_s\d+"), re.compile(r"(.+\.d\d+)\.s\d+(?:\.[ept]\d+)?"))
"""Ids of parts of documents, of which the first group is the document: ``12_s3`` as in Hallmarks of Cancer, and
``DDI-DrugBank.d519.s3.p0`` as in corpora of relations in the unified format (Pyysalo et al., 2008)."""
WHOLE_NUMBER = re.compile(r"(-?\d+)\.0")
"""Form of the whole numbers of a column with missing values, as pandas writes it."""
FEW_GROUPS = 30
"""With fewer groups than this, intervals over them are rough, which a warning says."""
LARGE_SHARE = 0.05
"""Share of the items above which a warning names the size of the largest group."""
REPEATED_SHARE, LONG_TEXT = 0.1, 40
"""Share of rows with the same text as another row that leads to a warning, and the fewest characters of such a text:
shorter ones, such as the aspects of a review, repeat anyway."""


def group_text(value: Any) -> str | None:
    """Return the name of a group as text, the same for all formats of files; None if there is none.

    Raises:
        ValueError: If the value is a list or another structure.
    """
    if isinstance(value, Mapping | list | tuple | set) or getattr(value, "ndim", None):
        raise ValueError
    value = value.item() if hasattr(value, "ndim") else value
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    whole = WHOLE_NUMBER.fullmatch(text)
    return str(int(whole[1])) if whole else text


@dataclass(frozen=True)
class Grouping:
    """Where the rows of a task have their group.

    Attributes:
        column: The column; empty if the groups are not known.
        name: What a group is, such as ``"patient"``.
        pattern: Pattern of the column of which the first group is the name; None for the whole value.
        others: Where rows without such a group have one, in this order.
        linked: The group of a column and a value of it, where it is not the value.
    """

    column: str = ""
    name: str = "document"
    pattern: re.Pattern[str] | None = None
    others: tuple[Grouping, ...] = ()
    linked: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """All columns."""
        return [self.column, *(other.column for other in self.others)]

    def of(self, row: Mapping[str, Any]) -> str | None:
        """Return the group of a row with the columns of the file; None if it has none."""
        key = next(iter(self._keys(row)), None)
        return key and self.linked.get(key, key[1])

    def _keys(self, row: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return each column in which a row has a group, with that group."""
        found = ((place.column, place.own(row)) for place in (self, *self.others))
        return [(column, value) for column, value in found if value is not None]

    def with_others(self, others: Iterable[Grouping], rows: Sequence[Mapping[str, Any]]) -> Grouping:
        """Return where rows have their group, if those without such a group have others.

        A row without a patient is of the group of its document, and so are the patients of that document.
        """
        whole = replace(self, others=tuple(others))
        keys = [whole._keys(row) for row in rows]
        bridges = {own[0] for own in keys if own and own[0][0] != self.column}
        if not bridges:
            return self
        firsts = [[key for key in own[:1]] + [key for key in own[1:] if key in bridges] for own in keys]
        members: dict[int, list[tuple[str, str]]] = {}
        for part, own in zip(connect(firsts), firsts, strict=True):
            members.setdefault(part, []).extend(own[:1])
        linked: dict[tuple[str, str], str] = {}
        for linked_keys in filter(None, members.values()):
            is_other, column, value = min((key[0] != self.column, *key) for key in linked_keys)
            # The name of another column is none of this one.
            linked |= dict.fromkeys(linked_keys, f"{column} {value}" if is_other else value)
        return replace(whole, linked=linked)

    def own(self, row: Mapping[str, Any]) -> str | None:
        """Return the group of a row in the column alone; None if it has none."""
        found = group_text(row.get(self.column)) if self.column else None
        if found is None or self.pattern is None:
            return found
        match = self.pattern.fullmatch(found)
        return match[1] if match else None


def find_grouping(
    name: str,
    rows: Mapping[str, Sequence[tuple[str, dict[str, Any]]]],
    given: str | None = None,
    taken: Collection[str | None] = (),
    more: Mapping[str, str] | None = None,
    last: Grouping | None = None,
) -> Grouping:
    """Return where rows have their group: the column that was named, one with a usual name, or an id.

    What is found by its name is reported, except ``document`` and ``more``. A column with one value says nothing. Rows
    that have no value there are grouped by the next such column (:meth:`Grouping.with_others`).

    Args:
        name: Name of the task, for messages.
        rows: The rows of each split, as they were read.
        given: The column that the user named, or several, separated by commas, of which the first is used that exists.
        taken: Columns that hold something else.
        more: Columns of groups that only this kind of task has, such as the title of an article, and what they are.
        last: What rows without any other group are grouped by, such as their passage.

    Raises:
        UserError: If no named column exists, or a value in it is no text and no number.
    """
    every = [row for part in rows.values() for row in part]
    names = column_names(every)
    cells = [row for _, row in every]
    candidates = [
        *(
            Grouping(column, what)
            for usual, what in GROUP_NAMES.items()
            for column in names
            if column.lower() == usual
        ),
        *(Grouping(column, "document", pattern) for column in names if column == "id" for pattern in ID_PATTERNS),
        *(Grouping(column, what) for column, what in (more or {}).items() if column in names),
    ]
    known = [(found, _count_groups(found, cells)) for found in candidates if found.column not in taken]
    usable = [(found, sizes) for found, sizes in known if sizes and len(sizes) > 1]
    if last and (sizes := _count_groups(last, cells)):
        usable.append((last, sizes))
    if given:
        wanted = [given] if given in names else name_parts(given)
        column = next((column for column in wanted if column in names), None)
        if column is None:
            raise unknown_name_error(f"column of the task '{name}' for 'group_column'", wanted[0], names)
        for where, row in every:
            try:
                group_text(row[column]) if column in row else None
            except ValueError:
                raise UserError(
                    f"{where}: '{column}' is {row[column]!r:.40}; the name of a group must be a text or a number."
                ) from None
        if len(wanted) > 1:
            warn_once(f"The groups of the task '{name}' are in '{column}'.")
        named = GROUP_NAMES.get(column.lower(), re.sub(r"(?<=.)[ _-]id$|(?<=[a-z])I[dD]$", "", column))
        return Grouping(column, named).with_others([one for one, _ in usable if one.column != column], cells)
    if not usable:
        return Grouping(name=last.name) if last else Grouping()
    (found, sizes), *others = usable
    whole = found.with_others([one for one, _ in others], cells)
    if found.column not in ("document", *(more or {})) and found is not last and max(sizes.values()) > 1:
        ids = "what precedes the number of the sentence in " if found.pattern else ""
        missing = len(cells) - sum(sizes.values())
        instead = f"are grouped by their {whole.others[0].name}" if whole.others else "are by themselves"
        rest = f" ({missing:,} have none and {instead})" if missing else ""
        warn_once(
            f"The {len(every):,} rows of the task '{name}' are of {len(sizes):,} {found.name}s, by {ids}"
            f"'{found.column}'{rest}; --group-column names another column."
        )
    return whole


def _count_groups(grouping: Grouping, rows: Iterable[Mapping[str, Any]]) -> Counter[str] | None:
    """Return the number of rows of each group; None if a value is no name, or an id does not have the pattern."""
    try:
        found = [grouping.own(row) for row in rows]
    except ValueError:
        return None
    return None if grouping.pattern and None in found else Counter(group for group in found if group is not None)


def number_known_groups(groups: Iterable[str | None]) -> tuple[int, ...] | None:
    """Return the number of the group of each item, from zero in the order in which they occur.

    An item without a group is a group of its own; None if no item has one.
    """
    listed = list(groups)
    if all(group is None for group in listed):
        return None
    return tuple(number_groups([place if group is None else group for place, group in enumerate(listed)]))


def shared_groups(task: Any, split: str) -> dict[str, Any]:
    """Return how many groups a split has, how many of them are also in train, and what they are; else nothing."""
    train, own = ({getattr(row, "group", None) for row in getattr(task, part)} - {None} for part in ("train", split))
    return {"groups": len(own), "groups_in_train": len(train & own), "group_name": task.group_name} if own else {}


def describe_groups(task: Any, texts: Callable[[Any], Iterable[str | None]]) -> list[str]:
    """Return what a user should know about the groups of a task: at most one line per split and fact.

    Args:
        task: A task.
        texts: Function from a row to its texts.
    """
    lines = []
    numbers = task.groups("test")
    what = task.group_name
    for split in ("dev", "test"):
        found = shared_groups(task, split) if getattr(task, split) != task.train else {}
        if found.get("groups_in_train"):
            lines.append(
                f"{found['groups_in_train']:,} of {found['groups']:,} {what}s of the {split} split of '{task.name}' "
                f"are also in train, so scores can be too good (unless each file numbers its {what}s from the start)."
            )
    if numbers is not None:
        sizes = Counter(numbers)
        share = max(sizes.values()) / len(numbers)
        is_grouped = len(sizes) < len(numbers) and len(numbers) >= FEW_GROUPS  # else the items themselves are few
        if is_grouped and (len(sizes) < FEW_GROUPS or share > LARGE_SHARE):
            lines.append(
                f"The {len(numbers):,} test items of '{task.name}' are of {len(sizes):,} {what}s, the largest with "
                f"{100 * share:.0f} % of the items: intervals over so few or so unequal {what}s are rough."
            )
    elif not any(task.groups(split) for split in ("train", "dev")):
        columns = list(zip_longest(*(tuple(texts(row)) for row in task.test)))
        share = max(map(_repeated_share, columns), default=0.0)
        if share > REPEATED_SHARE:
            lines.append(
                f"{100 * share:.0f} % of the test rows of '{task.name}' share a text with another row, so they are "
                "not independent; name the column of their document, patient or author, or this one, with "
                "--group-column."
            )
    return lines


def _repeated_share(texts: Sequence[str | None]) -> float:
    counts = Counter(text for text in texts if text and len(text) >= LONG_TEXT)
    return sum(count for count in counts.values() if count > 1) / max(len(texts), 1)
