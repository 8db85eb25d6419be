"""The tables of what a study took: each score, adaptations and distillations."""

from __future__ import annotations

from typing import Any

from acclimate.report.cells import Entry, Table, mean_entry, minutes_entry
from acclimate.report.words import method_name, metric_name, plain

STAGES = {
    "adaptation": "adaptation",
    "teacher": "teacher",
    "student": "student before",
    "distillation": "distillation",
    "finetuning": "fine-tuning",
}
"""The stages behind a score, and what they are called."""
NOTES = {
    "adaptation": "Adaptation: its training, and what came before it where that noted its minutes.",
    "teacher": "Teacher: its adaptation and its fine-tuning; a classifier from elsewhere took none here.",
    "student": "Student before: its fine-tuning before it is distilled.",
    "distillation": "Distillation: the teacher reads the train split, and both phases.",
}


def scored(results: dict[str, Any]) -> Table:
    """Put beside each score the minutes that it takes to make one such model from the one that came."""
    rows = [row for row in results["scores"] if row.get("stage_seconds")]
    found = [name for name in STAGES if any(name in row["stage_seconds"] for row in rows)]
    names = ["model", "domain", "task", "method", "metric", "score", "minutes", *(STAGES[name] for name in found)]
    note = (
        "Score: mean ± standard deviation over seeds, in points of 100. Minutes: by the clock, from the model as it "
        "came to one that is scored, a mean over seeds, and then their parts; other work on the machine makes them "
        "longer. What tasks and seeds share was done once and is counted whole in each row that needs it. "
        + "".join(f"{NOTES[name]} " for name in found if name in NOTES)
        + "Fine-tuning is counted with the scoring of its model, adaptation and distillation without. What a search "
        "tried is not counted."
    )
    table = Table("What each score took", note, names, [False] * 5 + [True] * (len(names) - 5))
    for row in rows:
        spent = row["stage_seconds"]
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells += [Entry(metric_name(row["metric"])), mean_entry(row[row["metric"]])]
        cells += [minutes_entry(spent[name] / 60 if name in spent else None) for name in ("sum", *found)]
        table.rows.append(cells)
    return table


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
    """Say what students came to, and how far they came to agree with their teachers."""
    names = ["model", "domain", "task", "method", "metric", "teacher", "student before", "after"]
    names += ["units that differ: before", "distilled", "at the end", "of"]
    note = (
        "Means over seeds, in points of 100. Units that differ: how many units of the representation are active in "
        "only one of teacher and student (Eq. 4 of DoKTra)."
    )
    table = Table("Teachers and students", note, names, [False] * 5 + [True] * 7)
    for row in results.get("distillations", []):
        curve = row["disagreement"]
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(Entry(metric_name(row["metric"])))
        cells += [Entry(plain(100 * row[name]), row[name]) for name in ("teacher", "before", "after")]
        units = [curve[0], curve[row["distilled_epochs"]], curve[-1], row["units"]]
        cells += [Entry(plain(value, 0), value) for value in units]
        table.rows.append(cells)
    return table
