"""The card of a model that learnt an end task, by fine-tuning or by distillation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acclimate.cards.adapted import LIMITS
from acclimate.cards.card import Card, hub_name, settings_table, shown_name, table
from acclimate.cards.measured import METRICS, TASKS
from acclimate.evaluation.resampling import item_intervals
from acclimate.evaluation.scoring import scoring_of


def write_learnt_card(
    folder: str | Path,
    name: str,
    verb: str,
    models: Mapping[str, str],
    task: Any,
    options: Mapping[str, Any],
    result: Any,
) -> Path:
    """Write ``README.md`` into the folder of a model that ``finetune`` or ``distill`` made.

    Args:
        folder: The model.
        name: What to call it.
        verb: ``"finetune"`` or ``"distill"``.
        models: What it was made from, by role: ``model``; or ``teacher`` and ``student``.
        task: What it learnt; a loaded task with its splits.
        options: How.
        result: What came out, a :class:`acclimate.tasks.result.FinetuneResult`.

    Returns:
        The path of the card.
    """
    pipeline, _ = TASKS.get(task.kind, TASKS["single_label"])
    start = models.get("model") or models["student"]
    taught = f", taught by `{shown_name(models['teacher'])}`" if "teacher" in models else ""
    done = "distilled" if verb == "distill" else "fine-tuned"
    summary = f"`{shown_name(start)}`, {done} on the task `{task.name}`{taught}."
    sizes = [(split, f"{len(getattr(task, split)):,}") for split in ("train", "dev", "test") if getattr(task, split)]
    scoring = scoring_of(result.kind, result.scoring)
    metrics = [name for name in scoring.metrics if name in result.metrics]
    reach = item_intervals(scoring, result.gold, result.predicted, metrics)
    values = [
        (metric, *(f"{100 * value:.1f}" for value in (result.metrics[metric], *reach[metric]))) for metric in metrics
    ]
    told = (
        f"On the {len(task.test):,} items of the test split, in points of 100; one model of seed {result.seed}. The "
        "interval is that of other test items (bootstrap); one seed says nothing about the luck of training: "
        "`acclimate compare` runs several, and joins both."
    )
    card = Card(
        name,
        pipeline,
        summary,
        base=hub_name(start),
        tags=[verb],
        results=[_result(pipeline, task, metric, result, reach[metric]) for metric in metrics],
    )
    card.sections = [
        ("Results", told + "\n\n" + table(("metric", "value", "95 % from", "to"), values)),
        ("Training", settings_table({**options, "examples": f"{result.train_size:,}"})),
        ("Data", table(("split", "items"), sizes) + f"\n\nHash of the task: `{task.fingerprint()}`."),
        ("Limits", LIMITS),
    ]
    return card.write(Path(folder))


def _result(pipeline: str, task: Any, metric: str, result: Any, reach: tuple[float, float]) -> dict[str, Any]:
    low, high = (round(end, 4) for end in reach)
    return {
        "task_type": pipeline,
        "dataset_type": task.name,
        "dataset_name": task.name,
        "dataset_split": "test",
        "metric_type": METRICS.get(metric, metric),
        "metric_name": metric.replace("_", " "),
        "metric_value": round(float(result.metrics[metric]), 4),
        "metric_args": {"seed": result.seed, "test_items": len(task.test), "low": low, "high": high},
    }
