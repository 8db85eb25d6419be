"""The table of what was tried on dev, and chosen."""

from __future__ import annotations

from typing import Any

from acclimate.report.cells import Entry, Table
from acclimate.report.words import metric_name, plain

DASH = Entry("–")


def searched(results: dict[str, Any]) -> Table:
    """Say for each search how many combinations were tried and which was taken; every trial is in ``results.json``."""
    names = ["model", "domain", "task", "method", "settings of", "combinations", "seeds", "chosen", "metric"]
    names += ["dev, chosen", "dev, best", "dev, worst", "dev ECE"]
    note = (
        "Settings were chosen by the mean over seeds on the dev split, before the test split was read. Of the "
        "combinations whose score is no more than a tolerance below the best ("
        + ", ".join(f"{100 * value:g}" for value in sorted({row["tolerance"] for row in results.get("searched", [])}))
        + " points), the one with the lowest expected calibration error was taken. Combinations: tried, of those that "
        "are possible. Scores in points of 100; on dev the chosen one is flattered by the choice."
    )
    numeric = [False] * 5 + [True] * 2 + [False] * 2 + [True] * 4
    table = Table("Chosen on dev", note, names, numeric)
    for row in results.get("searched", []):
        done = [trial for trial in row["trials"] if trial["state"] == "done"]
        failed = sum(trial["state"] == "failed" for trial in row["trials"])
        taken = next((trial for trial in done if trial["chosen"]), None)
        scores = [trial["score"] for trial in done]
        count = f"{row['tried']} of {row['possible']}" + (f", {failed} failed" if failed else "")
        cells = [Entry(row["model"]), Entry(row["domain"]), Entry(row["task"]), Entry(", ".join(row["methods"]))]
        cells += [Entry(row["stage"]), Entry(count, row["tried"]), Entry(str(len(row["seeds"])), len(row["seeds"]))]
        settings = row["chosen"] or {}
        cells.append(Entry(", ".join(f"{name} {_value(value)}" for name, value in settings.items()) or "–"))
        cells.append(Entry(metric_name(row["metric"])))
        cells += [_points(taken and taken["score"]), _points(max(scores, default=None))]
        cells += [_points(min(scores, default=None)), _points(taken and taken["ece"])]
        table.rows.append(cells)
    return table


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _points(value: float | None) -> Entry:
    return DASH if value is None else Entry(plain(100 * value), value)
