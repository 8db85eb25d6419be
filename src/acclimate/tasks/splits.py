"""Changing the splits of a loaded task: a random subset, dev instead of test, or a larger test split.

The larger test split is the re-partition of the DGA paper (Ke et al., EMNLP 2022, footnote 10).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.evaluation.scoring import SingleLabel
from acclimate.tasks.drawing import draw_rows, link_rows
from acclimate.tasks.kinds.classification.data import Example, Task
from acclimate.tasks.readers import SPLITS

SUBSAMPLE_SEED = 0
"""Random seed of subsets: fixed, so that studies with the same limit have the same rows."""
MIN_WHOLE_GROUPS = 5
"""Groups of average size that a subset must have room for, if it is one of whole groups."""


def replace_test_with_dev(task: Any) -> Any:
    """Return a task whose test split is replaced by its dev split, for a hyper-parameter search.

    An evaluation of the returned task therefore reads dev, and cannot read a test row.

    Raises:
        UserError: If the task has no dev split.
    """
    if not task.dev:
        raise UserError(f"The task '{task.name}' has no dev split, which a search needs.")
    return replace(task, test=task.dev)


def join_splits(task: Any) -> Any:
    """Return a task whose train split has the rows of all splits; nothing is left to score a model on."""
    return replace(task, train=[*task.train, *task.dev, *task.test], dev=[], test=[], drawn="")


def cut_dev(task: Any, part: Literal["dev", "tune", "confirm"]) -> Any:
    """Return a task whose test split is its dev split, or one of two halves of it: one to choose on, one to confirm.

    The cut is drawn with a fixed seed and is the same for every run, whatever the order of the rows. Classes, types or
    low and high numbers keep their shares in both halves (:meth:`acclimate.data.task_kinds.TaskKind.strata`). Rows
    of the same group or text stay together. The other rows, those of the test split among them, become the dev
    split: nothing may select weights by it, but a search for contamination finds them.

    Args:
        task: A task of any kind.
        part: ``"dev"`` for all of the split, ``"tune"`` or ``"confirm"`` for a half.

    Raises:
        UserError: If the task has no dev split, or one half would be empty.
    """
    if not task.dev:
        raise UserError(f"The task '{task.name}' has no dev split, which a choice is made on; add one.")
    if part == "dev":
        return replace(task, test=task.dev, dev=task.test)
    kind = find_task_kind(task)
    links = link_rows(task.dev, [kind.item_text(row) for row in task.dev])
    drawn = draw_rows(links, kind.strata(task.dev), {"confirm": 0.5}, SUBSAMPLE_SEED)
    places = set(drawn["confirm"])
    halves = [[row for place, row in enumerate(task.dev) if (place in places) == wanted] for wanted in (False, True)]
    if not all(halves):
        raise UserError(
            f"The dev split of '{task.name}' cannot be cut into halves: its {len(task.dev)} rows are of one text or "
            f"{task.group_name}, or there are too few of each class; add more."
        )
    chosen, others = reversed(halves) if part == "confirm" else halves
    return replace(task, test=chosen, dev=[*others, *task.test])


def limit_splits(task: Any, *, train: int | None = None, dev: int | None = None, test: int | None = None) -> Any:
    """Return a task in which some splits are random subsets, drawn with a fixed seed, in the order of the file.

    Classes are not balanced: a subset has about the class shares of the whole. Groups are drawn whole, and so are rows
    that are scored together (the sentences of a document, the snippets of a BioASQ question), so a split can be
    slightly smaller than its limit. Where fewer than five groups of average size fit, rows of all groups are drawn: a
    few groups would say less about others than the same number of rows of many. The labels remain those of the whole
    task.

    Args:
        task: A task of any kind.
        train: Maximum train rows; None for all.
        dev: Maximum dev rows; None for all.
        test: Maximum test rows; None for all.

    Raises:
        UserError: If a limit leaves no rows.
    """
    limits = dict(zip(SPLITS, (train, dev, test), strict=True))
    drawn = {
        split: _sample_rows(getattr(task, split), count, split, task.name)
        for split, count in limits.items()
        if count is not None and count < len(getattr(task, split))
    }
    return replace(task, **drawn) if drawn else task


def _sample_rows(rows: Sequence[Any], count: int, split: str, name: str) -> list[Any]:
    units: dict[Any, list[int]] = {}
    groups: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        unit = getattr(row, "document", None) or getattr(row, "item", None) or place
        group = getattr(row, "group", None)
        units.setdefault(unit, []).append(place)
        groups.setdefault(("unit", unit) if group is None else group, []).append(place)
    order = list((groups if count * len(groups) >= MIN_WHOLE_GROUPS * len(rows) else units).values())
    random.Random(f"{SUBSAMPLE_SEED}/limit/{split}").shuffle(order)
    kept: list[int] = []
    for group in order:
        if len(kept) + len(group) <= count:
            kept += group
    if not kept:
        raise UserError(f"A limit of {count} leaves nothing of the {split} split of '{name}'; give a larger one.")
    return [rows[place] for place in sorted(kept)]


log = logging.getLogger(__name__)


def repartition(task: Task | str | Path, ratio: float) -> Task:
    """Enlarge the test split of a task with its dev split and the first train rows of every class.

    From each class ``n = int(N_train * (1 - ratio) // n_classes)`` rows move from train to test, in the order of the
    file; a class with at most ``n`` rows loses all, and a warning names it. Groups move as a whole, if all their rows
    may move, so fewer rows can move from a task with groups. The paper gives only the reason: the test
    sets are too small to compare methods. The rule is that of its released data reader, and gives the sizes of the
    paper's Table 1 with a ratio of 0.9 for citation_intent, 0.7 for sciie and 0.5 for chemprot. Scores on such a split
    cannot be compared with scores on the original split.

    Args:
        task: A loaded task, or its folder. Its labels do not change, even those that lose all train rows.
        ratio: Approximate share of the train rows that stay, above 0 and at most 1; with 1 only dev moves.

    Returns:
        A task without a dev split. Its test rows are those of test, then of dev, then those from train; no row is lost
        or duplicated.

    Raises:
        UserError: If the ratio is out of range, fewer than two classes keep a train row, or the task does not have
            exactly one label per example.
    """
    task = load_task(task) if isinstance(task, str | Path) else task
    if task.scoring().name != SingleLabel.name:
        raise UserError(f"'{task.name}' cannot be re-partitioned: that needs exactly one label per example.")
    if not 0 < ratio <= 1:
        raise UserError(f"The ratio of a re-partition must be above 0 and at most 1, not {ratio}.")
    # Floats as in the released code: exact fractions could differ by one row where the product is an integer.
    quota = int(len(task.train) * (1 - ratio) // len(task.labels))
    groups: dict[Any, Counter[Any]] = {}
    for place, example in enumerate(task.train):
        groups.setdefault(place if example.group is None else example.group, Counter())[example.label] += 1
    left: Counter[Any] = Counter(dict.fromkeys(range(len(task.labels)), quota))
    moving = set()
    for group, labels in groups.items():
        if all(count <= left[label] for label, count in labels.items()):
            left.subtract(labels)
            moving.add(group)
    kept: list[Example] = []
    moved: list[Example] = []
    for place, example in enumerate(task.train):
        (moved if (place if example.group is None else example.group) in moving else kept).append(example)
    remaining = {example.label for example in kept}
    emptied = [label for number, label in enumerate(task.labels) if number not in remaining]
    if len(remaining) < 2:
        raise UserError(
            f"Re-partitioning '{task.name}' with {ratio} moves {quota} rows of each class and leaves fewer than two "
            "classes to learn; give a ratio closer to 1."
        )
    if emptied:
        log.warning(
            "Re-partitioning '%s' with %s leaves no train row of %d of its %d classes: %s. They stay in the test set "
            "and cannot be learned.",
            task.name,
            ratio,
            len(emptied),
            len(task.labels),
            ", ".join(emptied),
        )
    return replace(task, train=kept, test=[*task.test, *task.dev, *moved], dev=[])
