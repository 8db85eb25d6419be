"""Results of a study in a model card: as Markdown, and as ``model-index`` of the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acclimate.cards.card import escape_markdown, markdown_table
from acclimate.evaluation.scoring import find_hub_task
from acclimate.model_kinds import MASKED, ModelKind

HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "positive_micro_f1": "f1", "document_f1": "f1", "em": "exact_match"}
"""Names of metrics on the hub, where they differ from ours."""
VERDICTS = {"win": "helped", "loss": "hurt", "tie": "no difference shown"}


def result_sections(measured: Mapping[str, Any], model_kind: ModelKind = MASKED) -> list[tuple[str, str]]:
    """Return titles and Markdown of the result sections.

    Args:
        measured: ``study``: title of the study; ``baseline``; the rows ``scores``, ``losses`` and ``kept`` of the
            model, as in ``results.json``; and ``notes``: sentences to append.
        model_kind: The kind of the model, for the name and unit of its loss.
    """
    sections = []
    if measured["scores"]:
        rows = [_score_row(row) for row in measured["scores"]]
        intro = (
            f"Fine-tuned on end tasks in the study “{escape_markdown(measured['study'])}” and compared with "
            f"`{escape_markdown(measured['baseline'])}` on the same data, budget and seeds. Scores in percent; "
            "differences in percentage points, with 95 % intervals over seeds and test items."
        )
        columns = ("task", "metric", "mean ± sd", "seeds", "difference", "95 % interval", "verdict", "p (Holm)")
        sections.append(("Results", "\n\n".join([intro, markdown_table(columns, rows), *measured.get("notes", [])])))
    kept = [_other_domain_row(row) for row in measured.get("kept", []) if row.get("difference")]
    losses = [_loss_row(row) for row in measured["losses"] if "difference" in row]
    parts = []
    if losses:
        loss_name = f"{model_kind.loss_name[0].upper()}{model_kind.loss_name[1:]}"
        intro = f"{loss_name} on held-out text in {model_kind.loss_unit}, before and after; lower is better."
        parts += [intro, markdown_table(("text", "before", "after", "change", "95 % interval"), losses)]
    if kept:
        names = ("task of another domain", "metric", "before", "after", "difference", "95 % interval", "verdict")
        intro = "Fine-tuned on tasks of other domains; scores in percent, differences in percentage points."
        parts += [intro, markdown_table(names, kept)]
    if not any(row["text"] == "general" for row in measured["losses"]):
        parts.append("Forgetting of general text was not measured.")
    sections.append(("Held-out loss and forgetting", "\n\n".join(parts)))
    return sections


def _score_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    score, found = row[row["metric"]], row.get("difference")
    entry = found[row["metric"]] if found else None
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    compared: tuple[Any, ...] = (None,) * 4
    if entry:
        compared = (f"{100 * entry['difference']:+.1f}", _format_interval(entry, 100, 1), VERDICTS[entry["verdict"]])
        compared += (f"{entry.get('p_holm', entry['p']):.3f}",)
    return (row["task"], row["metric"], f"{100 * score['mean']:.1f}{spread}", len(score["values"]), *compared)


def _other_domain_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    entry = row["difference"][row["metric"]]
    before, after = row.get("before"), row[row["metric"]]["mean"]
    scores = (None if before is None else f"{100 * before:.1f}", f"{100 * after:.1f}")
    difference = (f"{100 * entry['difference']:+.1f}", _format_interval(entry, 100, 1), VERDICTS[entry["verdict"]])
    return (row["task"], row["metric"], *scores, *difference)


def _loss_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    entry, name = row["difference"], "general text" if row["text"] == "general" else f"{row['domain']}, held out"
    return (
        name,
        f"{row['before']:.3f}",
        f"{row['nats']:.3f}",
        f"{entry['difference']:+.3f}",
        _format_interval(entry, 1, 3),
    )


def _format_interval(entry: Mapping[str, Any], scale: float, digits: int) -> str:
    return f"{scale * entry['low']:+.{digits}f} to {scale * entry['high']:+.{digits}f}"


def eval_results(measured: Mapping[str, Any], model_kind: ModelKind = MASKED) -> list[dict[str, Any]]:
    """Return arguments of ``huggingface_hub.EvalResult``, with intervals in ``metric_args``."""
    results = []
    for row in measured["scores"]:
        kind, name = find_hub_task(row["kind"])
        metric, score = row["metric"], row[row["metric"]]
        details: dict[str, Any] = {"seeds": len(score["values"]), "test_items": row.get("test_items")}
        if score["sd"] is not None:
            details["sd"] = round(score["sd"], 4)
        if row.get("difference"):
            entry = row["difference"][metric]
            details["difference_to"] = measured["baseline"]
            details |= {key: round(entry[key], 4) for key in ("difference", "low", "high")}
        results.append(
            {
                "task_type": kind,
                "task_name": name,
                "dataset_type": _slug(row["task"]),
                "dataset_name": row["task"],
                "dataset_split": "test",
                "metric_type": HUB_METRICS.get(metric, metric),
                "metric_name": f"{metric.replace('_', ' ')}, mean over seeds",
                "metric_value": round(score["mean"], 4),
                "metric_args": details,
            }
        )
    for row in measured["losses"]:
        name = "general text" if row["text"] == "general" else f"{row['domain']}, held-out text"
        details = {"texts": row["texts"]}
        if "difference" in row:
            details |= {"before": round(row["before"], 4)}
            details |= {key: round(row["difference"][key], 4) for key in ("difference", "low", "high")}
        results.append(
            {
                "task_type": model_kind.pipeline_tag,
                "task_name": model_kind.task_name,
                "dataset_type": _slug(name),
                "dataset_name": name,
                "metric_type": "loss",
                "metric_name": f"{model_kind.loss_name}, {model_kind.loss_unit}",
                "metric_value": round(row["nats"], 4),
                "metric_args": details,
            }
        )
    return results


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "data"
