"""What is left to do of a study, and about how long it takes, without doing any of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.study.cells import Cell, CellStore
from acclimate.study.config import StudyConfig
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan, survey
from acclimate.study.search import final_plan, search
from acclimate.study.summary import Outcome
from acclimate.study.working import stored

ALIKE = ("model", "method", "domain", "task", "text")
"""Labels that cells have in common whose times are compared first."""


@dataclass
class Stretch:
    """The cells of one kind.

    Attributes:
        part: ``"search 1"``, ... or ``"study"``.
        kind: As of :class:`acclimate.study.cells.Cell`.
        cells: How many there are.
        done: How many of them have a result.
        seconds: An estimate for the others on one process; None if no finished cell says how long one takes.
    """

    part: str
    kind: str
    cells: int
    done: int
    seconds: float | None


@dataclass
class Forecast:
    """What a study has to do.

    Attributes:
        stretches: The cells by part and kind. A cell that several parts need is counted in the first.
        guessed: Whether later parts depend on choices that are still to be made; then they are counted with the first
            combination of each search.
    """

    stretches: list[Stretch]
    guessed: bool

    @property
    def seconds(self) -> float | None:
        """The estimate for all that is left; None if a part of it is unknown."""
        left = [stretch.seconds for stretch in self.stretches if stretch.done < stretch.cells]
        return None if None in left else sum(seconds or 0.0 for seconds in left)


def forecast(config: StudyConfig | str | Path, out: str | Path, parts: Parts | None = None) -> Forecast:
    """Lay out a study and look up which cells are done; no cell is computed, and nothing is written into ``out``.

    With ``leakage: remove`` what the corpora hold of dev and test texts decides which cells there are: they are read,
    and what was found is kept in the cache, for the study as well.

    The estimate of a cell is the mean time of the finished cells in ``out`` of the same kind, and of those the ones
    for the same model, method, domain, task and text where there are any, also of an older version of the study.

    Args:
        config: The study, or the path of its file.
        out: Folder of the study; it need not exist.
        parts: The functions to call; the default are acclimate's own.

    Raises:
        UserError: If the study cannot be run.
    """
    config = config if isinstance(config, StudyConfig) else StudyConfig.load(config)
    ground, store = survey(config, parts or Parts()), CellStore(Path(out))
    plans: list[Plan] = []

    def look(plan: Plan) -> dict[str, Outcome]:
        plans.append(plan)
        return {key: stored(cell, store) for key, cell in plan.cells.items()}

    found = search(ground, look, guess=True)
    guessed, found.decided = not found.decided, True
    names = [f"search {number}" for number in range(1, len(plans) + 1)]
    plans.append(final_plan(ground, found))
    times, seen, stretches = _Times(store.finished()), set[str](), []
    for name, plan in zip([*names, "study"], plans, strict=True):
        new = {key: cell for key, cell in plan.cells.items() if key not in seen}
        seen |= set(new)
        for kind in dict.fromkeys(cell.kind for cell in new.values()):
            cells = [cell for cell in new.values() if cell.kind == kind]
            left = [cell for cell in cells if store.result(cell) is None]
            stretches.append(Stretch(name, kind, len(cells), len(cells) - len(left), times.total(left)))
    return Forecast(stretches, guessed)


class _Times:
    """Seconds that finished cells took, by what they have in common."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self._seconds: dict[tuple[Any, ...], list[float]] = {}
        for record in records:
            kind, labels = record["kind"], record["labels"]
            for group in ((kind,), (kind, *(labels.get(name) for name in ALIKE))):
                self._seconds.setdefault(group, []).append(float(record["seconds"]))

    def total(self, cells: Iterable[Cell]) -> float | None:
        """Return the estimate for some cells of one kind; None if no such cell was ever finished."""
        total = 0.0
        for cell in cells:
            alike = self._seconds.get((cell.kind, *(cell.labels.get(name) for name in ALIKE)))
            known = alike or self._seconds.get((cell.kind,))
            if known is None:
                return None
            total += float(np.mean(known))
        return total
