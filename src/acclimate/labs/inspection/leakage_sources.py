"""The corpora that are searched for contamination, and the benchmarks whose texts are searched for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.options import values
from acclimate.data.csv_reader import WHOLE_ROW, missing_column_error
from acclimate.data.documents import Corpus, as_corpus, texts_in_memory
from acclimate.data.reading import TextOptions, default_task_name
from acclimate.data.task_kinds import find_task_kind
from acclimate.labs.inspection.options import InspectLeakageOptions
from acclimate.tasks.interfaces import EVALUATION_SPLITS

Items = list[list[str]]
"""The texts of each item of a split."""


def open_corpora(options: InspectLeakageOptions) -> dict[str, Corpus]:
    """Return each corpus that was given, with its duplicates, by a name that can be that of a file."""
    given: Any = options.corpus
    several = isinstance(given, list | tuple) and texts_in_memory(given, options.text_column) is None
    found: dict[str, Corpus] = {}
    for source in given if several else [given]:
        name = re.sub(r"[^\w.-]+", "_", _name(source, "texts")).lstrip(".") or "texts"
        number = next(n for n in range(1, len(found) + 2) if (f"{name}-{n}" if n > 1 else name) not in found)
        found[f"{name}-{number}" if number > 1 else name] = as_corpus(source, _reading(options), dedup=False)
    return found


def task_items(task: Any) -> tuple[str, dict[str, Items]]:
    """Return the name of a task, and the texts of its dev and test items; those of a pair are two texts."""
    kind = find_task_kind(task)
    splits = {}
    for split in EVALUATION_SPLITS:
        items = [[text for text in kind.searched(one) if text and text.strip()] for one in getattr(task, split, ())]
        if any(items):
            splits[split] = items
    return task.name, splits


def read_benchmark(
    source: Any, columns: Sequence[str], options: InspectLeakageOptions
) -> tuple[str, dict[str, Items]]:
    """Return the name of a benchmark, and the texts of its items, one a row.

    Args:
        source: Texts, as :func:`as_corpus` takes them.
        columns: Columns whose texts are searched for, each by itself; ``doc.question`` is a key of an object. Without
            any, the column of the text.
        options: How the texts are read.

    Raises:
        UserError: If the source cannot be read or lacks one of the columns.
    """
    reading = _reading(options)
    name = _name(source, "benchmark")
    if not columns:
        return name, {"": [[text] for text in as_corpus(source, reading, dedup=False)]}
    whole = TextOptions(text_column=WHOLE_ROW, encoding=reading.encoding)
    items: Items = []
    seen: set[str] = set()
    names: dict[str, None] = {}
    for line in as_corpus(source, whole, dedup=False):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise UserError(f"'{name}' is text without columns; leave out --benchmark-columns.")
        names |= dict.fromkeys(row)
        own = {column: _pick(row, column) for column in columns}
        seen.update(column for column, texts in own.items() if texts)
        items.append([reading.edits(text) for texts in own.values() for text in texts if text.strip()])
    if missing := [column for column in columns if column not in seen]:
        raise missing_column_error(name, missing[0], names)
    return name, {"": items}


def _pick(row: Any, column: str) -> list[str]:
    """Return the texts at a place in a row: a text, or those of a list."""
    found = row
    for key in [column] if column in row else column.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return [text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str)]


def _reading(options: InspectLeakageOptions) -> TextOptions:
    return TextOptions(**values(options, TextOptions))


def _name(source: Any, other: str) -> str:
    source = source.get("path", other) if isinstance(source, Mapping) else source
    return default_task_name(source) if isinstance(source, str | Path) else other
