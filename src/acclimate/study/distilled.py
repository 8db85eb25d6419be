"""What the distillations of a study took, and how far the students came to agree with their teachers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.study.config import StudyConfig

if TYPE_CHECKING:
    from acclimate.study.plan import Plan
    from acclimate.study.summary import Outcome


def distillations(config: StudyConfig, plan: Plan, outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Return one row per student, task and row of distillation; what has several seeds is a mean over them."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in plan.entries:
        result = outcomes[cell.key].result
        if cell.kind == "distill" and result is not None:
            made = outcomes[cell.needs].result if cell.needs else None
            place = tuple(cell.labels[name] for name in ("model", "domain", "task", "method"))
            found.setdefault(place, []).append({**result, "taught_seconds": (made or {}).get("seconds") or 0.0})
    order = [row.label for row in config.distill]
    return [
        {**dict(zip(("model", "domain", "task", "method"), place, strict=True)), **_row(results, plan, place)}
        for place, results in sorted(found.items(), key=lambda item: order.index(item[0][3]))
    ]


def _row(results: Sequence[dict[str, Any]], plan: Plan, place: tuple[str, ...]) -> dict[str, Any]:
    metric = plan.metrics[place[1], place[2]]

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    return {
        "metric": metric,
        "teacher": mean([result["teacher_metrics"][metric] for result in results]),
        "before": mean([result["student_metrics"][metric] for result in results]),
        "after": mean([result["metrics"][metric] for result in results]),
        "units": results[0]["units"],
        "distilled_epochs": results[0]["distilled_epochs"],
        "disagreement": [mean(values) for values in zip(*(result["disagreement"] for result in results), strict=True)],
        "teacher_seconds": mean([result["taught_seconds"] for result in results]),
        "seconds": mean([sum(result["stage_seconds"].values()) for result in results]),
    }
