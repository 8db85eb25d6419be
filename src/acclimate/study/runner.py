"""Walking through the cells of a study, alone or with other processes on the same folder."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from acclimate.device import trim_memory
from acclimate.locks import Claim
from acclimate.study.cells import Cell, CellStore
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan
from acclimate.study.shards import with_needs
from acclimate.study.summary import Outcome
from acclimate.study.work import Worker

POLL = 2.0
"""Seconds between two looks at cells that other processes compute."""


class Runner:
    """Computes what is not there yet. A cell is claimed first; a cell that another process claimed is left to it."""

    def __init__(self, plan: Plan, store: CellStore, parts: Parts, progress: bool) -> None:
        self._plan = plan
        self._store = store
        self._worker = Worker(plan, store, parts, progress)
        self._progress = progress
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not (progress and self._console.is_terminal),
            transient=True,
        )
        self._claims: dict[str, Claim] = {}
        self._said = ""
        self._outcomes: dict[str, Outcome] = {}
        self._needed: set[str] = set()
        self._failed_before: dict[str, dict[str, Any]] = {}

    def run(self, keys: list[str]) -> dict[str, Outcome]:
        """Compute the cells ``keys`` and what they need; return what became of them, in the order of the plan.

        Cells of other processes are waited for. A cell that fails, here or there, is not tried again.
        """
        cells = {key: self._plan.cells[key] for key in with_needs(keys, self._plan.cells)}
        missing = [cell for cell in cells.values() if self._store.result(cell) is None]
        # An adapted model that is gone is made again only if a cell is to read it, or a model that is gone, too.
        self._needed = {cell.needs for cell in missing if cell.needs}
        for key in reversed(cells):
            needed = cells[key].needs
            if needed and key in self._needed and not self._model_is_there(key):
                self._needed.add(needed)
        self._failed_before = {cell.key: record for cell in missing if (record := self._store.failure(cell))}
        todo = dict(cells)
        with self._bar:
            task = self._bar.add_task("study", total=len(todo))
            while todo:
                before = len(todo)
                for key, cell in cells.items():
                    if key in todo and (outcome := self._try(cell, todo)) is not None:
                        del todo[key]
                        self._outcomes[key] = outcome
                        self._bar.advance(task)
                if len(todo) == before:
                    self._wait(todo)
        return {key: self._outcomes[key] for key in cells}

    def _try(self, cell: Cell, todo: dict[str, Cell]) -> Outcome | None:
        """Return what became of a cell, computing it if nobody else does; None if its time has not come yet."""
        if (known := self._known(cell)) is not None:
            return known
        if cell.needs in todo:
            return None
        if cell.needs and self._outcomes[cell.needs].state in ("failed", "blocked"):
            return self._told(Outcome(cell, "blocked", error="what it needs failed"))
        claim = self._claims.setdefault(cell.key, self._store.claim(cell))
        if not claim.take():
            return None
        try:
            # Another process may have finished it between the look at the store and the claim.
            return self._known(cell) or self._told(self._compute(cell))
        finally:
            claim.release()
            del self._claims[cell.key]

    def _known(self, cell: Cell) -> Outcome | None:
        """Return what the store says of a cell: its result, or that another process failed at it during this run."""
        result = self._store.result(cell)
        if result is not None:
            remake = cell.key in self._needed and not self._model_is_there(cell.key)
            return None if remake else Outcome(cell, "reused", result)
        record = self._store.failure(cell)
        if record is None or record == self._failed_before.get(cell.key):
            return None
        return self._told(Outcome(cell, "failed", error=str(record.get("error"))))

    def _model_is_there(self, key: str) -> bool:
        return (self._store.model_folder(key) / "config.json").is_file()

    def _compute(self, cell: Cell) -> Outcome:
        for task in self._bar.task_ids:
            self._bar.update(task, description=cell.description)
        if cell.kind == "adapt":  # it shows a bar of its own
            self._bar.stop()
        outcome = self._worker.compute(cell)
        trim_memory()
        self._bar.start()
        return outcome

    def _told(self, outcome: Outcome) -> Outcome:
        if self._progress:
            self._say(outcome.line())
        return outcome

    def _wait(self, todo: dict[str, Cell]) -> None:
        """Say what is waited for, when that has changed, and wait a little."""
        claimed = {key: claim for key, claim in self._claims.items() if key in todo}
        first = next(iter(claimed), next(iter(todo)))
        owner = claimed[first].owner() if first in claimed else None
        who = f" ({owner.place})" if owner else ""
        count = f"{len(todo)} cell{'s' if len(todo) > 1 else ''}"
        line = f"… waiting for other processes: {count}, first {todo[first].description}{who}"
        if self._progress and line != self._said:
            self._said = line
            self._say(line)
        time.sleep(POLL)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
