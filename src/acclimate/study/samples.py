"""What a study shows beside its numbers: masked texts of its adaptations, and the importances that they measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.files import read_json

if TYPE_CHECKING:
    from acclimate.study.plan import Plan
    from acclimate.study.summary import Outcome

IMPORTANCE = "importance.json"


def masked_texts(plan: Plan, outcomes: dict[str, Outcome], count: int) -> list[dict[str, Any]]:
    """Return texts as the maskings of a study hide them: the first seed of each method, side by side where it can be.

    Args:
        plan: The cells of the study.
        outcomes: What became of each.
        count: Texts at most for each text that is adapted to; 0 for none.

    Returns:
        For each text its ``place``, and ``maskings`` from a label to tokens, as
        :func:`acclimate.masking.preview.preview_tokens` gives them. Methods that hide the same share a label.
    """
    texts: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    seen: set[tuple[Any, ...]] = set()
    tasks = {(cell.labels.get("domain"), cell.labels.get("task")) for cell in plan.entries if cell.kind == "adapt"}
    for cell in plan.entries:
        found = (outcomes[cell.key].result or {}).get("masked") if cell.kind == "adapt" else None
        labels = cell.labels
        which = tuple(labels.get(name) for name in ("domain", "task", "method"))
        if not found or not labels.get("domain") or which in seen:  # the text does not depend on model or seed
            continue
        seen.add(which)
        several = sum(domain == labels["domain"] and task is not None for domain, task in tasks) > 1
        name = f"{labels['method']}, {labels['task']}" if several and labels.get("task") else labels["method"]
        for pieces in found["texts"][:count]:
            text = "".join(f"{' ' * piece['space']}{piece['text']}" for piece in pieces)
            hidden = {"masking": found["masking"], "pieces": pieces}
            texts.setdefault((labels["domain"], text), {})[name] = hidden
    return [{"place": place, "maskings": _joined(found)} for (place, _), found in texts.items()]


def _joined(found: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Put methods that hide the same under one label, with the name of the masking."""
    groups: dict[str, list[str]] = {}
    for method, hidden in found.items():
        groups.setdefault(json.dumps([hidden["masking"], hidden["pieces"]]), []).append(method)
    joined = {}
    for key, methods in groups.items():
        masking = json.loads(key)[0]
        label = ", ".join(methods) + (f": {masking}" if methods != [masking] else "")
        joined[label] = found[methods[0]]["pieces"]
    return joined


def found_before(accounts: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what an adaptation found before its training: ``importance``, for the heat map, and ``accounts``."""
    others = {name: account for name, account in accounts.items() if name != IMPORTANCE}
    return {"accounts": others, "importance": accounts.get(IMPORTANCE) or read_importance(folder)}


def read_importance(folder: Path) -> dict[str, Any] | None:
    """Return what an adaptation wrote of the importances that it measured; None if it measured none."""
    try:
        found = read_json(folder / IMPORTANCE)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("parts"), dict) else None
