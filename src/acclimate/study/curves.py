"""The learning curves of an adaptation, read from its log and thinned to what a plot can show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

CURVE_POINTS = 200


def read_curves(log: Path) -> dict[str, list[dict[str, Any]]]:
    """Return ``curve``, the loss in training, and ``heldout_curve``, that on held-out text; broken lines are left out.

    Args:
        log: A ``log.jsonl``; where it is missing, both are empty.
    """
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    found: dict[str, list[dict[str, Any]]] = {"curve": [], "heldout_curve": []}
    for line in lines:
        try:
            entry = json.loads(line)
            kind = "heldout_curve" if "heldout" in entry else "curve"
            entry = {**entry, **entry.get("heldout", {})}
            found[kind].append({name: entry[name] for name in ("step", "tokens", "loss", "terms") if name in entry})
        except (json.JSONDecodeError, TypeError):
            continue
    return {kind: _thinned(points) for kind, points in found.items()}


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(points) <= CURVE_POINTS:
        return points
    chosen = np.unique(np.linspace(0, len(points) - 1, CURVE_POINTS).round().astype(int))
    return [points[index] for index in chosen]
