"""Tables that sum up several measurements: the capability sheet, and wins with the search of each side."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from acclimate.report.formatting import place_name
from acclimate.results.cells import DASH, Entry, Table, count_entry, interval_entry, number_entry, signed_entry
from acclimate.results.comparisons import CapabilityRow
from acclimate.results.scores import VERDICTS
from acclimate.results.study import StudyResults

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
HEAD_TO_HEAD = (
    "Number of tasks on which the 95 % interval lies above zero, includes zero, or lies below zero. First with what "
    "was searched on dev for each side; then, as a warning, with what was chosen for the method on both sides, which "
    "favors the method. Share helped: Wilson interval over tasks. Mean difference: in percentage points, with an "
    "interval over tasks, so about other tasks of this kind."
)


def combined_tables(results: StudyResults) -> list[Table]:
    """Return the tables that sum up several measurements."""
    return [*capability_tables(results), head_to_head(results)]


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


def head_to_head(results: StudyResults) -> Table:
    """Return wins over tasks, with settings or prompts searched for each side, and for the adapted side alone."""
    names = ["model", "method", "searched", "chosen for", "tasks", "helped", "no difference shown", "hurt"]
    names += ["share helped, 95 %", "mean difference", "95 % interval"]
    table = Table("Head-to-head", HEAD_TO_HEAD, names, [False] * 4 + [True] * 7)
    for row in results.head_to_head:
        cells = [Entry(row.model), Entry(row.method), Entry(row.searched)]
        cells.append(Entry("the method alone (biased)" if row.biased else "each side"))
        cells += map(count_entry, (row.tasks, row.win, row.tie, row.loss))
        cells.append(Entry(f"{100 * row.win_low:.0f} to {100 * row.win_high:.0f} %", row.win_low))
        entry = row.difference
        shown = entry and isfinite(entry.low) and [signed_entry(entry.difference, scale=100), interval_entry(entry)]
        table.rows.append([*cells, *(shown or [DASH, DASH])])
    return table


def biased_searches(results: StudyResults) -> list[str]:
    """Warn where a search for the adapted model alone would show more wins than a search for each side."""
    fair = {(row.model, row.method, row.searched): row for row in results.head_to_head if not row.biased}
    found = []
    for row in results.head_to_head:
        other = fair.get((row.model, row.method, row.searched))
        if row.biased and other and row.win > other.win:
            found.append(
                f"With {row.searched} that were chosen for '{row.method}' alone, it helps on {row.win} of {row.tasks} "
                f"tasks instead of {other.win}: a comparison without a search for the base model would be misleading."
            )
    return found


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
