"""From finished cells to results: means over seeds, paired differences, what was forgotten, what it took."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from acclimate.evaluation.statistics import paired_difference
from acclimate.study.cells import HEAD, Cell, CellStore
from acclimate.study.choices import settled
from acclimate.study.config import StudyConfig
from acclimate.study.curves import read_curves
from acclimate.study.distilled import distillations
from acclimate.study.environment import environment
from acclimate.study.kept import KEPT, kept_rows
from acclimate.study.leaks import leakage_rows
from acclimate.study.limits import limit_notes
from acclimate.study.moved import moved_rows
from acclimate.study.plan import Plan
from acclimate.study.samples import found_before, masked_texts
from acclimate.study.scored import against, correct, describe
from acclimate.study.tally import tally
from acclimate.study.took import took

FORMAT = 1


@dataclass
class Outcome:
    """What became of a cell.

    ``"done"`` now, ``"reused"``, ``"failed"``, ``"blocked"`` by one that failed, or ``"missing"``: left to others.
    """

    cell: Cell
    state: str
    result: dict[str, Any] | None = None
    error: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """One line for the terminal."""
        if self.state == "done":
            return f"✓ {self.cell.description} ({self.seconds:.1f} s)"
        return f"✗ {self.cell.description}: {self.error}"


def summarise(
    config: StudyConfig,
    plan: Plan,
    store: CellStore,
    outcomes: dict[str, Outcome],
    searched: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Make the results of a study from what its cells hold; plain values, ready for JSON.

    Args:
        config: The study.
        plan: Its cells, with what was chosen.
        store: Where they are kept.
        outcomes: What became of them, and of those of a search.
        searched: What was tried on dev, and chosen: see :func:`acclimate.study.search.search`.
    """
    view = _View(config, plan, outcomes)
    scores = view.scores()
    correct(scores)
    return {
        "format": FORMAT,
        "name": config.name,
        "title": config.title or config.name,
        "notes": [*config.notes, *limit_notes(plan)],
        "samples": [sample.model_dump(exclude_none=True) for sample in config.samples],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "baseline": config.baseline,
        "models": [model.name for model in config.models],
        "domains": [domain.name for domain in config.domains],
        "methods": [
            {"label": label, "name": name, "parameters": settled(settings, label, searched)}
            for label, name, settings in (
                *((method.label, method.name, plan.settings.get(method.label, {})) for method in config.methods),
                *((row.label, "distill", row.settings) for row in config.distill),
            )
        ],
        "seeds": config.seeds,
        "adapt_seeds": config.adapt_seeds or [config.adapt.seed],
        "shared_adaptation": len(config.adapt_seeds or [0]) == 1 and any(map(_adapts, plan.cells.values())),
        "searched": list(searched),
        "scores": scores,
        "tally": tally(scores),
        "losses": view.losses(),
        "kept": kept_rows(config, plan, outcomes),
        "moved": moved_rows(plan, outcomes),
        "leakage": leakage_rows(plan),
        "unlooked": list(plan.unlooked),
        "adaptations": view.adaptations(store),
        "masked": masked_texts(plan, outcomes, config.evaluate.masked_texts),
        "distillations": distillations(config, plan, outcomes),
        "failures": [
            {"cell": outcome.cell.description, "error": outcome.error, "state": outcome.state}
            for outcome in outcomes.values()
            if outcome.state in ("failed", "blocked", "missing")
        ],
        "cells": {
            "total": len(outcomes),
            **{
                state: sum(outcome.state == state for outcome in outcomes.values())
                for state in ("done", "reused", "failed", "blocked", "missing")
            },
        },
        "config": config.resolved(),
        "environment": environment(),
    }


def _adapts(cell: Cell) -> bool:
    return cell.kind == "adapt" and cell.labels["method"] != HEAD


class _View:
    """Looks up results by their place in the study."""

    def __init__(self, config: StudyConfig, plan: Plan, outcomes: dict[str, Outcome]) -> None:
        self._config = config
        self._plan = plan
        self._outcomes = outcomes
        self._cells: dict[tuple[Any, ...], list[tuple[Cell, dict[str, Any]]]] = {}
        for cell in plan.entries:
            result = outcomes[cell.key].result
            if result is not None and cell.labels.get("role") != KEPT:
                kind = "finetune" if cell.kind == "distill" else cell.kind  # both are scored on the task
                self._cells.setdefault(self._place(kind, cell.labels), []).append((cell, result))

    @staticmethod
    def _place(kind: str, labels: dict[str, Any]) -> tuple[Any, ...]:
        return (kind, *(labels.get(name) for name in ("model", "domain", "method", "task", "text")))

    def _find(self, kind: str, **labels: Any) -> list[tuple[Cell, dict[str, Any]]]:
        return self._cells.get(self._place(kind, labels), [])

    def scores(self) -> list[dict[str, Any]]:
        """One row per model, domain, task and method."""
        rows = []
        for model in self._config.models:
            for domain in self._config.domains:
                for task in domain.tasks:
                    place = {"model": model.name, "domain": domain.name, "task": task.name}
                    metric = self._plan.metrics[domain.name, task.name]
                    base = self._find("finetune", **place, method=self._config.baseline)
                    for method in self._config.rows:
                        found = self._find("finetune", **place, method=method.label)
                        if found:
                            row = {**place, "method": method.label, "metric": metric, **describe(found)}
                            row["stage_seconds"] = took(found, self._outcomes)
                            if method.label != self._config.baseline and base:
                                row["difference"] = against(found, base, self._plan.cells)
                            rows.append(row)
        return rows

    def losses(self) -> list[dict[str, Any]]:
        """One row per model, domain, kind of text and method (and task, where it adapts to each): before and after."""
        rows = []
        for model in self._config.models:
            for domain in self._config.domains:
                for text in ("domain", "general"):
                    place = {"model": model.name, "domain": domain.name, "text": text}
                    base = self._find("loss", **place, method=None)
                    for method, task in itertools.product(self._config.methods, (None, *domain.tasks)):
                        own = {} if task is None else {"task": task.name}  # adapted for this task alone
                        found = self._find("loss", **place, **own, method=method.label)
                        if found:
                            rows.append({**place, **own, "method": method.label, **_change(found, base)})
        return rows

    def adaptations(self, store: CellStore) -> list[dict[str, Any]]:
        """One row per adaptation: its budget, time and learning curve."""
        rows = []
        for (kind, model, domain, method, task, _), found in self._cells.items():
            if kind != "adapt":
                continue
            for cell, result in found:
                rows.append(
                    {
                        "model": model,
                        "domain": domain,
                        "method": method,
                        "task": task,
                        "head": method == HEAD,
                        "seed": cell.labels.get("adapt_seed"),
                        "folder": f"models/{cell.key}",
                        **{name: result.get(name) for name in ("steps", "tokens", "seconds", "losses", "broken")},
                        **found_before(result.get("accounts", {}), store.model_folder(cell.key)),
                        **read_curves(store.model_folder(cell.key) / "log.jsonl"),
                    }
                )
        return rows


def _change(found: Sequence[tuple[Cell, Any]], base: Sequence[tuple[Cell, Any]]) -> dict[str, Any]:
    """Masked-LM loss after, and, where the model as it came was measured too, before and the difference."""
    after = [result for _, result in found]
    row: dict[str, Any] = {
        "nats": float(np.mean([result["nats"] for result in after])),
        "values": [float(result["nats"]) for result in after],
        "adapt_seeds": [cell.labels.get("adapt_seed") for cell, _ in found],
        "texts": len(after[0]["per_text"]),
        "masked": after[0].get("masked"),
    }
    if all("bits_per_byte" in result for result in after):  # cells from before it was measured have none
        row["bits_per_byte"] = float(np.mean([result["bits_per_byte"] for result in after]))
    if base:
        before = base[0][1]
        counts = np.asarray(before.get("per_text_masked") or np.ones(len(before["per_text"])), dtype=float)
        used = counts > 0
        if used.sum() < 2:  # the change of one text says nothing of others
            return row
        was = np.asarray(before["per_text"], dtype=float)[used] / counts[used]
        now = np.asarray([result["per_text"] for result in after], dtype=float)[:, used] / counts[used]
        row["before"] = float(before["nats"])
        if "bits_per_byte" in before:
            row["bits_per_byte_before"] = float(before["bits_per_byte"])
        row["difference"] = paired_difference(now, was, counts[used]).as_dict()
        row["percent"] = 100 * row["difference"]["difference"] / row["before"] if row["before"] else None
    return row
