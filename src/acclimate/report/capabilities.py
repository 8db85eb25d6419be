"""The capability sheet: what each method gained and lost in the groups of measurements that the study names."""

from __future__ import annotations

from collections.abc import Sequence

from acclimate.adaptation_rows import CapabilityRow
from acclimate.report.formatting import (
    DASH,
    Entry,
    Table,
    interval_entry,
    number_entry,
    place_name,
    signed_entry,
)
from acclimate.results import StudyResults
from acclimate.rows import VERDICTS

WORDS = {**VERDICTS, "win": "better", "loss": "worse"}
SHEET = (
    "Number of measurements in each group whose 95 % interval shows that the model got better or worse by the "
    "adaptation. Groups are those of the study. The next table has each measurement with its interval."
)
MEASUREMENTS = (
    "Scores of fine-tuned models are compared with the baseline ({baseline}), all else with the base model. Scores in "
    "percent, differences in percentage points; losses in nats per predicted token or bits per byte, of which less is "
    "better."
)


def capability_tables(results: StudyResults) -> list[Table]:
    """Return the sheet, with a row per method and a column per group, and the table of its measurements."""
    found = results.capabilities or []
    groups = list(dict.fromkeys(row.group for row in found))
    places: dict[tuple[str, str], list[CapabilityRow]] = {}
    for row in found:
        places.setdefault((_place(results, row), row.method), []).append(row)
    columns = ["adapted to", "method", *groups]
    sheet = Table("Capability sheet", SHEET, columns, [False] * len(columns))
    sheet.rows = [
        [Entry(place), Entry(method), *(_count([row for row in rows if row.group == group]) for group in groups)]
        for (place, method), rows in places.items()
    ]
    columns = [
        "group",
        "measurement",
        "adapted to",
        "method",
        "before",
        "after",
        "difference",
        "95 % interval",
        "verdict",
    ]
    numeric = [False] * 4 + [True] * 4 + [False]
    note = MEASUREMENTS.format(baseline=results.baseline)
    table = Table("Measurements by capability", note, columns, numeric, grouped=True)
    table.rows = [_measurement(results, row) for row in found]
    return [sheet, table]


def _place(results: StudyResults, row: CapabilityRow) -> str:
    return place_name(results, row.model, row.domain, row.task)


def _count(rows: Sequence[CapabilityRow]) -> Entry:
    """Return how many measurements got better and worse; marked if all changes go one way."""
    if not rows:
        return DASH
    verdicts = [row.verdict for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in ("win", "loss")}
    open_ones = len(rows) - sum(counts.values())
    parts = [f"{count} {WORDS[verdict]}" for verdict, count in counts.items() if count]
    parts += [f"{open_ones} no difference shown"] if open_ones else []
    mark = "" if all(counts.values()) else next((verdict for verdict, count in counts.items() if count), "tie")
    return Entry(", ".join(parts), counts["win"] - counts["loss"], mark)


def _measurement(results: StudyResults, row: CapabilityRow) -> list[Entry]:
    digits = 1 if row.unit == "points" else 3
    name = row.measure if row.unit == "points" else f"{row.measure}, {row.unit}"
    cells = [Entry(row.group), Entry(name), Entry(_place(results, row)), Entry(row.method)]
    cells += [number_entry(row.before, digits), number_entry(row.after, digits)]
    if row.difference is None:
        return [*cells, DASH, DASH, DASH]
    change = [signed_entry(row.difference.difference, digits), interval_entry(row.difference, 1, digits)]
    return [*cells, *change, Entry(WORDS[row.verdict], None, row.verdict)]
