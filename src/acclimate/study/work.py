"""The work of one cell: the call of the part that does it, and what is kept of its result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from acclimate.cards.writers import ACCOUNT_FILE
from acclimate.errors import UserError
from acclimate.files import read_json
from acclimate.study.cells import Cell, CellStore
from acclimate.study.kept import home_of
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan
from acclimate.study.summary import Outcome

log = logging.getLogger(__name__)


class Worker:
    """Computes cells and stores what came out; which, and when, is for others to say."""

    def __init__(self, plan: Plan, store: CellStore, parts: Parts, progress: bool) -> None:
        self._plan = plan
        self._store = store
        self._parts = parts
        self._progress = progress

    def compute(self, cell: Cell) -> Outcome:
        """Compute a cell and store its result, or the error that it ended with."""
        work: dict[str, Callable[[Cell], dict[str, Any]]] = {
            "adapt": self._adapt,
            "loss": self._loss,
            "moved": self._moved,
            "finetune": self._finetune,
            "teacher": self._teach,
            "distill": self._distill,
        }
        started = time.perf_counter()
        try:
            result = work[cell.kind](cell)
        except UserError as error:
            return self._failed(cell, str(error), time.perf_counter() - started)
        except Exception as error:  # one cell must not take the others with it
            log.debug("cell %s failed", cell.key, exc_info=True)
            return self._failed(cell, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        seconds = time.perf_counter() - started
        self._store.finish(cell, result, seconds)
        return Outcome(cell, "done", result, seconds=seconds)

    def _failed(self, cell: Cell, message: str, seconds: float) -> Outcome:
        stored = self._store.result(cell)
        if stored is not None:  # this process stood still so long that another took the cell over, and did it
            return Outcome(cell, "reused", stored)
        line = " ".join(message.split())
        line = line if len(line) <= 500 else line[:497] + "..."
        self._store.fail(cell, line, seconds)
        return Outcome(cell, "failed", error=line, seconds=seconds)

    def _model(self, cell: Cell) -> str:
        return str(self._store.model_folder(cell.needs)) if cell.needs else self._plan.models[cell.labels["model"]]

    def _adapt(self, cell: Cell) -> dict[str, Any]:
        options = dict(self._plan.adapt[cell.key])
        folder = self._store.model_folder(cell.key)
        result = self._parts.adapt(
            self._model(cell), options.pop("corpus"), out=folder, progress=self._progress, **options
        )
        kept = {name: getattr(result, name) for name in ("method", "steps", "tokens", "seconds", "losses")}
        masked = getattr(result, "masked", None)
        accounts = getattr(result, "accounts", None)
        more = {"masked": masked, "accounts": accounts, "broken": _broken(folder)}
        return {**kept, **{name: value for name, value in more.items() if value}}

    def _loss(self, cell: Cell) -> dict[str, Any]:
        name = "general" if cell.labels["text"] == "general" else f"domain {cell.labels['domain']}"
        return dict(
            self._parts.lm_loss(
                self._model(cell), self._plan.texts[name].texts, max_length=cell.identity["max_length"]
            )
        )

    def _moved(self, cell: Cell) -> dict[str, Any]:
        texts = self._plan.texts["general"].texts
        base = self._plan.models[cell.labels["model"]]  # what warms up a head leaves the encoder as it is
        return dict(self._parts.moved(base, self._model(cell), texts, max_length=cell.identity["max_length"]))

    def _finetune(self, cell: Cell) -> dict[str, Any]:
        options = self._plan.finetune[cell.key]
        return self._on_task(cell, self._parts.finetune, self._model(cell), **options)

    def _teach(self, cell: Cell) -> dict[str, Any]:
        options = dict(self._plan.distill[cell.key])
        path = options.pop("model")
        folder = self._store.model_folder(cell.key)
        return self._on_task(cell, self._parts.finetune, path or self._model(cell), out=folder, **options)

    def _distill(self, cell: Cell) -> dict[str, Any]:
        options = dict(self._plan.distill[cell.key])
        path = options.pop("teacher")
        return self._on_task(cell, self._parts.distill, path or self._model(cell), options.pop("student"), **options)

    def _on_task(self, cell: Cell, do: Callable[..., Any], *models: str, **options: Any) -> dict[str, Any]:
        """Let models learn the task of a cell with its seed; return what is kept of the result."""
        task = self._plan.tasks[home_of(cell.labels), cell.labels["task"]]
        result = do(*models, task, seed=cell.labels["seed"], progress=False, **options)
        values = asdict(result) if is_dataclass(result) and not isinstance(result, type) else dict(vars(result))
        values.pop("probabilities", None)
        return values


def _broken(model: Path) -> dict[str, Any] | None:
    """Return how many records of its text an adaptation could not read, and the first; None if it read all."""
    account = model / ACCOUNT_FILE
    card = read_json(account) if account.is_file() else {}  # a part of a user's own may write none
    texts = [part.get("text") or {} for part in card.get("stages") or [card]]
    texts = list({tuple(text["problems"]): text for text in texts if text.get("broken")}.values())
    if not texts:
        return None
    broken, documents = (sum(text[name] for text in texts) for name in ("broken", "documents"))
    return {"records": broken, "documents": documents, "first": texts[0]["problems"][0]}
