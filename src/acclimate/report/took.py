"""The tables of what a study took: adaptations and distillations."""

from __future__ import annotations

from typing import Any

from acclimate.report.cells import Entry, Table
from acclimate.report.words import method_name, metric_name, plain


def adaptations(results: dict[str, Any]) -> Table:
    """Say what each adaptation took, and where its model is."""
    names = ["model", "domain", "method", "seed", "tokens", "steps", "minutes", "tokens/s", "folder"]
    note = "Tokens of text that were read, and minutes of training without loading and tokenising."
    table = Table("What adaptation took", note, names, [False] * 3 + [True] * 5 + [False])
    for row in results["adaptations"]:
        tokens, seconds = row["tokens"] or 0, row["seconds"] or 0.0
        speed = tokens / seconds if seconds else 0.0
        table.rows.append(
            [
                Entry(row["model"] or ""),
                Entry(row["domain"] or "all"),
                Entry(method_name(row)),
                Entry("–" if row["seed"] is None else str(row["seed"]), row["seed"]),
                Entry(f"{tokens:,}", tokens),
                Entry(f"{row['steps'] or 0:,}", row["steps"]),
                Entry(f"{seconds / 60:.1f}", seconds),
                Entry(f"{speed:,.0f}" if speed else "–", speed),
                Entry(row["folder"]),
            ]
        )
    return table


def distillations(results: dict[str, Any]) -> Table:
    """Say what distillation took, and how far students came to agree with their teachers."""
    names = ["model", "domain", "task", "method", "metric", "teacher", "student before", "after"]
    names += ["units that differ: before", "distilled", "at the end", "of", "minutes, teacher", "minutes, student"]
    note = (
        "Means over seeds, in points of 100. Units that differ: how many units of the representation are active in "
        "only one of teacher and student (Eq. 4 of DoKTra). Minutes: fine-tuning of the teacher, once; fine-tuning of "
        "the student and distillation, for each seed. How the teacher was adapted is not counted in either."
    )
    table = Table("What distillation took", note, names, [False] * 5 + [True] * 9)
    for row in results.get("distillations", []):
        curve = row["disagreement"]
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(Entry(metric_name(row["metric"])))
        cells += [Entry(plain(100 * row[name]), row[name]) for name in ("teacher", "before", "after")]
        units = [curve[0], curve[row["distilled_epochs"]], curve[-1], row["units"]]
        cells += [Entry(plain(value, 0), value) for value in units]
        cells += [Entry(plain(row[name] / 60), row[name]) for name in ("teacher_seconds", "seconds")]
        table.rows.append(cells)
    return table
