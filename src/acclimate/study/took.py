"""How long a score took, stage by stage, from the model as it came to the one that is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.report.timing import preparation_minutes
from acclimate.study.cells import HEAD, Cell

if TYPE_CHECKING:
    from acclimate.study.summary import Outcome

STAGES = ("adaptation", "teacher", "student", "distillation", "finetuning")


def took(found: Sequence[tuple[Cell, dict[str, Any]]], outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Return the seconds of each stage behind a score: means over its cells, and their ``sum``.

    They are what the cells noted when they were computed. An adaptation or a teacher that several cells share is
    counted whole for each of them, since one such model could not be had for less.

    Args:
        found: The cells of one place, each fine-tuned or distilled with another seed, with their results.
        outcomes: What became of all cells of the study, by key.

    Returns:
        Those of :data:`STAGES` that there are: ``adaptation`` with what came before its training; ``teacher``, its
        adaptation and fine-tuning; ``student``, its fine-tuning before it is distilled; ``distillation``, in which
        the teacher reads the train split and the student learns in both phases; ``finetuning``. Cells whose
        adaptation or teacher has no result any more are left out; empty if none is left.
    """
    rows = [row for cell, result in found if (row := _stages(cell, result, outcomes)) is not None]
    names = [name for name in STAGES if any(name in row for row in rows)]
    means = {name: float(np.mean([row.get(name, 0.0) for row in rows])) for name in names}
    return {**means, "sum": sum(means.values())} if means else {}


def _stages(cell: Cell, result: dict[str, Any], outcomes: Mapping[str, Outcome]) -> dict[str, float] | None:
    """Return the stages of one cell; None if what it needs has no result."""
    if cell.kind != "distill":
        adapted = _adaptation(cell.needs, outcomes)
        own = {"finetuning": _seconds(result)}
        return None if adapted is None else {"adaptation": adapted, **own} if adapted else own
    spent = result["stage_seconds"]
    row = {"student": spent["student"], "distillation": spent["signs"] + spent["distillation"]}
    if cell.needs is None:  # it knew the task before there was a study
        return row
    taught = outcomes[cell.needs]
    adapted = _adaptation(taught.cell.needs, outcomes)
    if taught.result is None or adapted is None:
        return None
    return {"teacher": adapted + _seconds(taught.result), **row}


def _adaptation(key: str | None, outcomes: Mapping[str, Outcome]) -> float | None:
    """Return the seconds of an adaptation and of all before it; None if one of them has no result.

    The warm-up of a missing head is a part of what adaptation takes. A classifier that starts from it alone does not
    need it: it leaves the encoder as it is.
    """
    if key is None or outcomes[key].cell.labels["method"] == HEAD:
        return 0.0
    total = 0.0
    while key is not None:
        made = outcomes[key]
        if made.result is None:
            return None
        prepared = preparation_minutes(made.result.get("accounts", {}))
        total += _seconds(made.result) + 60 * sum(minutes for _, minutes in prepared)
        key = made.cell.needs
    return total


def _seconds(result: Mapping[str, Any]) -> float:
    return float(result.get("seconds") or 0.0)
