"""The cards of a study's models: what it measured of each, with intervals, and what was lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acclimate.cards import write_adapted_card
from acclimate.cards.writers import ACCOUNT_FILE


def write_model_cards(results: dict[str, Any], out: Path) -> list[Path]:
    """Write ``README.md`` into the folder of every model that a study adapted; return their paths.

    Models of the same method that differ in the seed of adaptation share their results, which are those of the
    method over its seeds; the card says so.

    Args:
        results: As ``acclimate.compare`` returns.
        out: Folder of the study.
    """
    written = []
    for run in results["adaptations"]:
        folder = out / run["folder"]
        if run["head"] or not (folder / ACCOUNT_FILE).is_file() or not (folder / "config.json").is_file():
            continue
        written.append(write_adapted_card(folder, _name(results, run), _measured(results, run)))
    return written


def _measured(results: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    notes = []
    if len(results["adapt_seeds"]) > 1:
        notes.append(
            f"These are results of the method over {len(results['adapt_seeds'])} adaptations; this model is that of "
            f"seed {run['seed']}."
        )
    elif results["shared_adaptation"]:
        notes.append(
            "The intervals include the luck of fine-tuning and of the test items, not that of the adaptation."
        )
    return {
        "study": results["title"],
        "baseline": results["baseline"],
        "scores": list(_rows(results["scores"], run)),
        "losses": list(_rows(results["losses"], run)),
        "kept": list(_rows(results.get("kept") or [], run, task="adapted_for")),
        "notes": notes,
    }


def _rows(rows: list[dict[str, Any]], run: dict[str, Any], task: str = "task") -> Iterator[dict[str, Any]]:
    """Yield the rows of a model: all tasks of its domain, or the one that it was adapted for."""
    for row in rows:
        same = all(row[name] == run[name] for name in ("model", "domain", "method"))
        if same and (run["task"] is None or row.get(task) == run["task"]):
            yield row


def _name(results: dict[str, Any], run: dict[str, Any]) -> str:
    """Name a model after what it comes from; the seed only where there are several."""
    parts = [run["model"], run["method"], run["domain"], run["task"]]
    if len(results["adapt_seeds"]) > 1:
        parts.append(f"seed {run['seed']}")
    return re.sub(r"[^\w.]+", "-", " ".join(str(part) for part in parts if part)).strip("-.")
