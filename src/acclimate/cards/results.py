"""The results of a study in model cards: Markdown sections, and ``model-index`` for the Hub."""

from __future__ import annotations

import re
from typing import Any

from acclimate.cards.card import escape_markdown, markdown_table
from acclimate.data.documents import count_units
from acclimate.evaluation.scoring import find_scoring
from acclimate.models.kinds import ModelKind
from acclimate.results.scores import (
    NOT_LEARNED,
    NOTHING_LEARNED,
    Comparison,
    ForgettingRow,
    Interval,
    LossRow,
    MetricSummary,
    TaskScores,
    verdict_word,
)
from acclimate.results.study import StudyResults

HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "positive_micro_f1": "f1", "document_f1": "f1", "em": "exact_match"}
"""Hub names of metrics, where they differ from the names in this package."""


def result_sections(results: StudyResults, model_kind: ModelKind) -> list[tuple[str, str]]:
    """Return pairs of title and Markdown for the result sections.

    Args:
        results: Results of a study, with the rows of one model.
        model_kind: The kind of the model, for the name and unit of its loss.
    """
    sections = []
    if results.scores:
        intro = (
            f"Fine-tuned on end tasks in the study “{escape_markdown(results.title)}” and compared with "
            f"`{escape_markdown(results.baseline)}` on the same data, budget and seeds. Scores in percent; "
            "differences in percentage points, with 95 % intervals over seeds and test items."
        )
        answers = [row.comparison.verdict for row in results.scores if row.comparison]
        answer = [f"**{NOTHING_LEARNED}**"] if answers and set(answers) == {NOT_LEARNED} else []
        columns = ("task", "metric", "mean ± sd", "seeds", "difference", "95 % interval", "verdict", "p (Holm)")
        table = markdown_table(columns, [_score_row(row) for row in results.scores])
        sections.append(("Results", "\n\n".join([*answer, intro, table, *results.notes])))
    tables = [table for kind in results.kinds for table in kind.tables(results)]
    for found in (table for table in (*tables, *(one.table() for one in results.tables)) if table.rows):
        shown = [place for place, name in enumerate(found.columns) if name not in ("model", "domain", "method")]
        body = markdown_table(
            [found.columns[place] for place in shown], [[row[place].text for place in shown] for row in found.rows]
        )
        sections.append((found.title, f"{escape_markdown(found.note)}\n\n{body}".strip()))
    parts = []
    if losses := [_loss_row(row, row.before, row.nats, row.difference) for row in results.losses if row.difference]:
        loss_name = f"{model_kind.loss_name[0].upper()}{model_kind.loss_name[1:]}"
        intro = f"{loss_name} on held-out text in {model_kind.loss_unit}, before and after; lower is better."
        parts += [intro, markdown_table(("text", "before", "after", "change", "95 % interval"), losses)]
    if bits := [
        _loss_row(row, row.bits_per_byte_before, row.bits_per_byte, row.bits_per_byte_difference)
        for row in results.losses
        if row.bits_per_byte_difference
    ]:
        intro = "The same in bits per byte, which is comparable across tokenizers."
        parts += [intro, markdown_table(("text", "before", "after", "change", "95 % interval"), bits)]
    if others := [_other_task_row(row, row.comparison) for row in results.forgetting if row.comparison]:
        names = ("task of another domain", "metric", "before", "after", "difference", "95 % interval", "verdict")
        intro = "Fine-tuned on tasks of other domains; scores in percent, differences in percentage points."
        parts += [intro, markdown_table(names, others)]
    if not any(row.text == "general" for row in results.losses):
        parts.append("Forgetting of general text was not measured.")
    sections.append(("Held-out loss and forgetting", "\n\n".join(parts)))
    return sections


def _score(row: TaskScores) -> MetricSummary:
    return row.summaries[row.metric]


def _score_row(row: TaskScores) -> tuple[Any, ...]:
    score, entry = _score(row), row.comparison
    spread = "" if score.sd is None else f" ± {100 * score.sd:.1f}"
    p = entry and (entry.p if entry.p_holm is None else entry.p_holm)
    compared = (*_difference(entry), None if p is None else f"{p:.3f}") if entry else (None,) * 4
    return (row.task, row.metric, f"{100 * score.mean:.1f}{spread}", len(score.by_seed), *compared)


def _difference(entry: Comparison) -> tuple[str, str, str]:
    """Return difference, interval and verdict."""
    return (f"{100 * entry.difference:+.1f}", _format_interval(entry, 100, 1), verdict_word(entry))


def _loss_row(row: LossRow, before: float | None, after: float | None, entry: Interval) -> tuple[Any, ...]:
    change = (f"{before:.3f}", f"{after:.3f}", f"{entry.difference:+.3f}", _format_interval(entry, 1, 3))
    return ("general text" if row.text == "general" else f"{row.domain}, held out", *change)


def _other_task_row(row: ForgettingRow, entry: Comparison) -> tuple[Any, ...]:
    before = None if row.before is None else f"{100 * row.before:.1f}"
    return (row.task, row.metric, before, f"{100 * _score(row).mean:.1f}", *_difference(entry))


def _format_interval(entry: Interval, scale: float, digits: int) -> str:
    return f"{scale * entry.low:+.{digits}f} to {scale * entry.high:+.{digits}f}"


def eval_results(results: StudyResults, model_kind: ModelKind) -> list[dict[str, Any]]:
    """Return arguments of ``huggingface_hub.EvalResult``, with intervals in ``metric_args``.

    Args:
        results: Results of a study, with the rows of one model.
        model_kind: The kind of the model, for the name and unit of its loss.
    """
    found = []
    for row in results.scores:
        task_type, task_name = find_scoring(row.kind).hub_task
        score = _score(row)
        details: dict[str, Any] = {"seeds": len(score.by_seed), "test_items": row.test_items}
        if row.test_units:
            details["test_units"] = count_units(row.test_items, row.test_units, row.group_name)
        if score.sd is not None:
            details["sd"] = round(score.sd, 4)
        if entry := row.comparison:
            details |= {"difference_to": results.baseline, **_rounded(entry)}
        found.append(
            {
                "task_type": task_type,
                "task_name": task_name,
                "dataset_type": _slug(row.task),
                "dataset_name": row.task,
                "dataset_split": "test",
                "metric_type": HUB_METRICS.get(row.metric, row.metric),
                "metric_name": f"{row.metric.replace('_', ' ')}, mean over seeds",
                "metric_value": round(score.mean, 4),
                "metric_args": details,
            }
        )
    for loss in results.losses:
        name = "general text" if loss.text == "general" else f"{loss.domain}, held-out text"
        measured: list[tuple[str, str, float, float | None, Interval | None]] = [
            ("loss", f"{model_kind.loss_name}, {model_kind.loss_unit}", loss.nats, loss.before, loss.difference)
        ]
        if per_byte := loss.bits_per_byte_difference:
            before = loss.bits_per_byte_before
            measured.append(("bits_per_byte", "bits per byte", loss.bits_per_byte or 0.0, before, per_byte))
        for metric, metric_name, value, before, difference in measured:
            details = {"texts": loss.texts}
            if difference and before is not None:
                details |= {"before": round(before, 4), **_rounded(difference)}
            found.append(
                {
                    "task_type": model_kind.pipeline_tag,
                    "task_name": model_kind.task_name,
                    "dataset_type": _slug(name),
                    "dataset_name": name,
                    "metric_type": metric,
                    "metric_name": metric_name,
                    "metric_value": round(value, 4),
                    "metric_args": details,
                }
            )
    return found


def _rounded(entry: Interval) -> dict[str, float]:
    return {key: round(entry[key], 4) for key in ("difference", "low", "high")}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "data"
