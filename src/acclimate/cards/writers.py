"""The card of a model that was adapted, or trained from scratch: made from the account in its folder.

The card of a model that learnt an end task, by fine-tuning or by distillation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acclimate.cards.card import Card, display_name, format_bytes, hub_name, markdown_table, settings_table
from acclimate.cards.results import HUB_METRICS, eval_results, result_sections
from acclimate.evaluation.bootstrap import bootstrap_intervals
from acclimate.evaluation.scoring import find_hub_task, make_scoring
from acclimate.files import read_json

ACCOUNT_FILE = "acclimate.json"
TRAINING_KEYS = (
    *("seed", "batch_size", "max_length", "learning_rate", "warmup", "weight_decay", "mask_rate", "precision"),
    "layout",
)
NOT_MEASURED = (
    "Not measured. `acclimate compare` fine-tunes this model and the one it came from on end tasks with several "
    "seeds, and writes differences with intervals here, and what was lost on general text."
)
LIMITS = (
    "The model knows what its training text says, true or not, with whatever bias that text has. It was not checked "
    "for anything but what stands above."
)


def write_adapted_card(folder: str | Path, name: str, measured: Mapping[str, Any] | None = None) -> Path:
    """Write ``README.md`` into the folder of a model of ``adapt`` or ``pretrain``.

    Args:
        folder: The model, with its ``acclimate.json``.
        name: What to call it.
        measured: What a study measured, see :func:`acclimate.cards.results.result_sections`; None: nothing yet.

    Returns:
        The path of the card.
    """
    folder = Path(folder)
    account = read_json(folder / ACCOUNT_FILE)
    method, about = account["method"], account.get("about", {})
    scratch = method == "pretrain"
    base = None if scratch else str(account["model"])
    paper = f" ({about['paper']})" if about.get("paper") else ""
    if scratch:
        summary = "A masked language model that was trained from scratch."
    else:
        done = "left as it is" if method == "none" else f"adapted to the text below with the method `{method}`{paper}"
        summary = f"`{display_name(str(base))}`, {done}."
    if about.get("summary") and not scratch:
        summary += f" In short: {about['summary']}."
    card = Card(
        name,
        "fill-mask",
        summary,
        base=hub_name(base) if base else None,
        tags=[method],
        results=eval_results(measured) if measured else [],
    )
    card.sections = [
        *(result_sections(measured) if measured else [("Results", NOT_MEASURED)]),
        ("Method", settings_table({"method": method + paper, **_method_settings(account.get("settings", {}))})),
        ("Training", settings_table(_training_settings(account))),
        ("Data", _data_section(account)),
        ("Limits", LIMITS),
    ]
    return card.write(folder)


def _method_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method: of paths of the machine only the last part."""
    return {name: _strip_folders(value) if isinstance(value, str) else value for name, value in given.items()}


def _strip_folders(name: str) -> str:
    return name if name.startswith("hf:") else Path(name).name or name


def _training_settings(account: Mapping[str, Any]) -> dict[str, Any]:
    result = account["result"]
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.get("losses", {}).items() if name != "loss")
    masking = account.get("masking") or {}
    return {
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        **{name.replace("_", " "): account.get(name) for name in TRAINING_KEYS},
        "masking": masking.get("name") if isinstance(masking, dict) else masking,
        "loss at the end, nats": losses or None,
        "acclimate": account.get("acclimate"),
    }


def _data_section(account: Mapping[str, Any]) -> str:
    """List what was read: of paths of the machine only the last part, which is all that others can know."""
    rows, totals = [], []
    for part in account.get("stages") or [account]:
        text = part.get("text") or {}
        sources = text.get("contents") or [{"name": name} for name in text.get("sources", [])]
        for source in sources:
            row = (_strip_folders(source["name"]), format_bytes(source.get("bytes")), source.get("hash"))
            if row not in rows:
                rows.append(row)
        counts = [f"{text.get('documents', 0):,} documents"]
        counts += [f"{text[name]:,} {word}" for name, word in _EXCLUDED_COUNTS.items() if text.get(name)]
        totals.append(f"{', '.join(counts)}; hash of all: `{part.get('corpus')}`.")
    shown = markdown_table(("source", "size", "hash"), rows[:MAX_SOURCES])
    more = f"\n\nand {len(rows) - MAX_SOURCES:,} more" if len(rows) > MAX_SOURCES else ""
    return shown + more + "\n\n" + "\n\n".join(dict.fromkeys(totals))


MAX_SOURCES = 50
"""Sources that are listed."""
_EXCLUDED_COUNTS = {
    "duplicates": "duplicates left out",
    "empty": "empty records left out",
    "broken": "broken records left out",
    "elsewhere": "in the other part of a split",
}


def write_task_model_card(
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
    pipeline, _ = find_hub_task(task.kind)
    start = models.get("model") or models["student"]
    taught = f", taught by `{display_name(models['teacher'])}`" if "teacher" in models else ""
    done = "distilled" if verb == "distill" else "fine-tuned"
    summary = f"`{display_name(start)}`, {done} on the task `{task.name}`{taught}."
    sizes = [(split, f"{len(getattr(task, split)):,}") for split in ("train", "dev", "test") if getattr(task, split)]
    scoring = make_scoring(result.kind, result.scoring)
    metrics = [name for name in scoring.metrics if name in result.metrics]
    reach = bootstrap_intervals(scoring, result.gold, result.predicted, metrics)
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
        results=[_eval_result(pipeline, task, metric, result, reach[metric]) for metric in metrics],
    )
    card.sections = [
        ("Results", told + "\n\n" + markdown_table(("metric", "value", "95 % from", "to"), values)),
        ("Training", settings_table({**options, "examples": f"{result.train_size:,}"})),
        ("Data", markdown_table(("split", "items"), sizes) + f"\n\nHash of the task: `{task.fingerprint()}`."),
        ("Limits", LIMITS),
    ]
    return card.write(Path(folder))


def _eval_result(pipeline: str, task: Any, metric: str, result: Any, reach: tuple[float, float]) -> dict[str, Any]:
    low, high = (round(end, 4) for end in reach)
    return {
        "task_type": pipeline,
        "dataset_type": task.name,
        "dataset_name": task.name,
        "dataset_split": "test",
        "metric_type": HUB_METRICS.get(metric, metric),
        "metric_name": metric.replace("_", " "),
        "metric_value": round(float(result.metrics[metric]), 4),
        "metric_args": {"seed": result.seed, "test_items": len(task.test), "low": low, "high": high},
    }
