"""How far adaptation moved a model: the cells, and the rows of the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.study.cells import Cell
from acclimate.study.config import StudyConfig

if TYPE_CHECKING:
    from acclimate.study.plan import Plan
    from acclimate.study.summary import Outcome


def add_moved(plan: Plan, config: StudyConfig, here: dict[str, Any], base: str, adapted: str) -> None:
    """Add the cell that measures how far an adapted model is from its base, if the study wants it.

    Args:
        plan: Holds the general text.
        config: The study.
        here: Labels of the cell.
        base: Identity of the model that was adapted.
        adapted: Key of the cell that made the adapted one.
    """
    if config.evaluate.moved:
        identity = {
            "model": adapted,
            "base": base,
            "texts": plan.texts["general"].identity,
            "max_length": config.evaluate.max_length,
        }
        plan.add(Cell("moved", identity, {**here, "text": "general"}, adapted))


def moved_rows(plan: Plan, outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Return one row per model, domain and method (and task that it was adapted for): means over adaptation seeds."""
    found: dict[tuple[Any, ...], list[tuple[Cell, dict[str, Any]]]] = {}
    for cell in plan.entries:
        result = outcomes[cell.key].result
        if cell.kind == "moved" and result is not None:
            place = tuple(cell.labels.get(name) for name in ("model", "domain", "method", "task"))
            found.setdefault(place, []).append((cell, result))
    rows = []
    for (model, domain, method, task), cells in found.items():
        results = [result for _, result in cells]
        own = {} if task is None else {"task": task}
        rows.append(
            {
                **{"model": model, "domain": domain, **own, "method": method},
                "adapt_seeds": [cell.labels.get("adapt_seed") for cell, _ in cells],
                "texts": results[0]["texts"],
                "tokens": results[0]["tokens"],
                "embeddings": _mean([result["embeddings"]["all"] for result in results]),
                "embeddings_read": _mean([result["embeddings"]["read"] for result in results]),
                "layers": [_mean(layers) for layers in zip(*(result["layers"] for result in results), strict=True)],
            }
        )
    return rows


def _mean(tables: Any) -> dict[str, float]:
    """Average the values of tables that have the same names."""
    return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}
