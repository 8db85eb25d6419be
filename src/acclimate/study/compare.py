"""Running a study: every cell once, whatever happens to the others, and then the results and the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from acclimate.errors import UserError
from acclimate.files import write_json
from acclimate.study.cells import Cell, CellStore
from acclimate.study.config import StudyConfig
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan, make_plan
from acclimate.study.summary import Outcome, summarise

log = logging.getLogger(__name__)


def compare(
    config: StudyConfig | dict[str, Any] | str | Path,
    out: str | Path,
    *,
    progress: bool = True,
    parts: Parts | None = None,
) -> dict[str, Any]:
    """Compare models x methods x domains and tasks x seeds, and write what came out.

    Each cell is stored in ``out/cells`` when it is finished, under a key of everything that determines it. The same
    call after a kill, or with a method more, computes only what is not there yet. At the end ``out`` holds
    ``results.json`` and ``report.html``.

    Args:
        config: The study, or plain values for one, or the path of a ``.yaml`` or ``.toml`` file.
        out: Folder of the study.
        progress: Show a bar, a line per cell, and the table of results.
        parts: The functions to call; the default are acclimate's own.

    Returns:
        The results, as in ``results.json``.

    Raises:
        UserError: If the study cannot be run, or, after everything else was done and written, if cells failed.
    """
    if isinstance(config, str | Path):
        config = StudyConfig.load(config)
    elif isinstance(config, dict):
        config = StudyConfig.of(config)
    parts = parts or Parts()
    out = Path(out)
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a folder for the study.")
    plan = make_plan(config, parts)
    store = CellStore(out)
    outcomes = _Runner(plan, store, parts, progress).run()
    results = summarise(config, plan, store, outcomes)
    write_json(out / "results.json", results)

    from acclimate.report import results_table, write_report

    report = write_report(results, out / "report.html")
    if progress:
        console = Console()
        for table in results_table(results):
            console.print(table)
        console.print(f"Report: {report}", highlight=False, markup=False, soft_wrap=True)
    failed = [outcome for outcome in outcomes.values() if outcome.state == "failed"]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(outcomes)} cells failed; the others are in '{out}'. First: "
            f"{failed[0].cell.description}: {failed[0].error} Mend it and run the same command again."
        )
    return results


class _Runner:
    """Runs the cells of a plan one after the other."""

    def __init__(self, plan: Plan, store: CellStore, parts: Parts, progress: bool) -> None:
        self._plan = plan
        self._store = store
        self._parts = parts
        self._progress = progress
        self._outcomes: dict[str, Outcome] = {}

    def run(self) -> dict[str, Outcome]:
        """Run what is not there yet; return what became of each cell."""
        pending = self._pending()
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not (self._progress and console.is_terminal),
            transient=True,
        )
        with bar:
            task = bar.add_task("study", total=len(self._plan.cells), completed=len(self._plan.cells) - len(pending))
            for key, cell in self._plan.cells.items():
                if key not in pending:
                    self._outcomes[key] = Outcome(cell, "reused", self._store.result(cell))
                    continue
                bar.update(task, description=cell.description)
                if cell.kind == "adapt":  # it shows a bar of its own
                    bar.stop()
                outcome = self._outcomes[key] = self._one(cell)
                bar.start()
                bar.advance(task)
                if self._progress:
                    console.print(outcome.line(), highlight=False, markup=False, soft_wrap=True)
        return self._outcomes

    def _pending(self) -> set[str]:
        """Return the keys to run: what has no result, and any model that is gone but still needed for one."""
        pending: set[str] = set()
        for key, cell in reversed(self._plan.cells.items()):  # what needs a model comes after it
            if self._store.result(cell) is None:
                pending.add(key)
        for key, cell in reversed(self._plan.cells.items()):
            needed = cell.needs
            if key in pending and needed and not (self._store.model_folder(needed) / "config.json").is_file():
                pending.add(needed)
        return pending

    def _one(self, cell: Cell) -> Outcome:
        source = self._outcomes.get(cell.needs) if cell.needs else None
        if source is not None and source.state in ("failed", "blocked"):
            return Outcome(cell, "blocked", error="the adaptation that it needs failed")
        started = time.perf_counter()
        try:
            result = self._work(cell)
        except UserError as error:
            return self._failed(cell, str(error), time.perf_counter() - started)
        except Exception as error:  # one cell must not take the others with it
            log.debug("cell %s failed", cell.key, exc_info=True)
            return self._failed(cell, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        seconds = time.perf_counter() - started
        self._store.finish(cell, result, seconds)
        return Outcome(cell, "done", result, seconds=seconds)

    def _failed(self, cell: Cell, message: str, seconds: float) -> Outcome:
        line = " ".join(message.split())
        line = line if len(line) <= 500 else line[:497] + "..."
        self._store.fail(cell, line, seconds)
        return Outcome(cell, "failed", error=line, seconds=seconds)

    def _work(self, cell: Cell) -> dict[str, Any]:
        work: dict[str, Callable[[Cell], dict[str, Any]]] = {
            "adapt": self._adapt,
            "loss": self._loss,
            "finetune": self._finetune,
        }
        return work[cell.kind](cell)

    def _model(self, cell: Cell) -> str:
        return str(self._store.model_folder(cell.needs)) if cell.needs else self._plan.models[cell.labels["model"]]

    def _adapt(self, cell: Cell) -> dict[str, Any]:
        options = dict(self._plan.adapt[cell.key])
        folder = self._store.model_folder(cell.key)
        result = self._parts.adapt(
            self._model(cell), options.pop("corpus"), out=folder, progress=self._progress, **options
        )
        return {name: getattr(result, name) for name in ("method", "steps", "tokens", "seconds", "losses")}

    def _loss(self, cell: Cell) -> dict[str, Any]:
        name = "general" if cell.labels["text"] == "general" else f"domain {cell.labels['domain']}"
        return dict(
            self._parts.lm_loss(
                self._model(cell), self._plan.texts[name].texts, max_length=cell.identity["max_length"]
            )
        )

    def _finetune(self, cell: Cell) -> dict[str, Any]:
        task = self._plan.tasks[cell.labels["domain"], cell.labels["task"]]
        options = self._plan.finetune[cell.key]
        result = self._parts.finetune(self._model(cell), task, seed=cell.labels["seed"], progress=False, **options)
        values = asdict(result) if is_dataclass(result) and not isinstance(result, type) else dict(vars(result))
        values.pop("probabilities", None)
        return values
