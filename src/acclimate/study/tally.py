"""How often a method won, tied and lost against the baseline, over the tasks of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEVEL = 0.05


def tally(scores: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count verdicts of the 95 % intervals for each model and method, over all its tasks.

    Args:
        scores: Rows of scores; those without a comparison are left out.

    Returns:
        Rows with ``model``, ``method``, ``tasks``; ``win``, ``tie`` and ``loss``; ``win_holm`` and ``loss_holm``, how
        many of these stay below 0.05 after Holm's correction over the study; and ``mean``, the mean difference over
        the tasks, each in its own metric.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in scores:
        if row.get("difference"):
            entry = row["difference"][row["metric"]]
            found.setdefault((row["model"], row["method"]), []).append(entry)
    return [
        {
            "model": model,
            "method": method,
            "tasks": len(entries),
            **{verdict: sum(entry["verdict"] == verdict for entry in entries) for verdict in ("win", "tie", "loss")},
            **{f"{verdict}_holm": sum(_stands(entry, verdict) for entry in entries) for verdict in ("win", "loss")},
            "mean": sum(entry["difference"] for entry in entries) / len(entries),
        }
        for (model, method), entries in found.items()
    ]


def _stands(entry: dict[str, Any], verdict: str) -> bool:
    return entry["verdict"] == verdict and entry.get("p_holm", 1.0) < LEVEL
