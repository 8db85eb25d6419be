"""Other splits of a task that was read: a random part of it, or all of it but test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acclimate.errors import UserError
from acclimate.tasks.folders import SPLITS

SEED = 0
"""Of the rows that are drawn: the same for every study, so that studies with the same limit have the same rows."""


def held_back(task: Any) -> Any:
    """Return a task without its test split, for a search: its dev split stands in that place, and in its own.

    Whatever is done with it then measures dev. No test row is in it, so none can be read.

    Raises:
        UserError: If it has no dev split.
    """
    if not task.dev:
        raise UserError(f"The task '{task.name}' has no dev split, so nothing can be searched on it.")
    return replace(task, test=task.dev)


def limited(task: Any, *, train: int | None = None, dev: int | None = None, test: int | None = None) -> Any:
    """Return a task of which some splits are a random part, drawn with a fixed seed, in the order of the file.

    Classes are not balanced: a part has about the shares of the whole. What is scored as one (the sentences of a
    document, the snippets of a question of BioASQ) is drawn as one, so that a split can be a little smaller than its
    limit. The labels stay those of the whole task.

    Args:
        task: A task of any kind.
        train: Rows to keep, at most; None for all.
        dev: The same.
        test: The same.

    Raises:
        UserError: If a limit leaves nothing.
    """
    limits = dict(zip(SPLITS, (train, dev, test), strict=True))
    drawn = {
        split: _draw(getattr(task, split), count, split, task.name)
        for split, count in limits.items()
        if count is not None and count < len(getattr(task, split))
    }
    return replace(task, **drawn) if drawn else task


def _draw(rows: Sequence[Any], count: int, split: str, name: str) -> list[Any]:
    groups: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        whole = getattr(row, "document", None) or getattr(row, "item", None)
        groups.setdefault(place if whole is None else whole, []).append(place)
    order = list(groups.values())
    random.Random(f"{SEED}/limit/{split}").shuffle(order)
    kept: list[int] = []
    for group in order:
        if len(kept) + len(group) <= count:
            kept += group
    if not kept:
        raise UserError(f"A limit of {count} leaves nothing of the {split} split of '{name}'; give a larger one.")
    return [rows[place] for place in sorted(kept)]
