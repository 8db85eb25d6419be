"""The capability sheet of a study: its measurements in groups that the study names, with what was gained and lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from acclimate.base.errors import UserError, did_you_mean
from acclimate.base.records import Record, optional
from acclimate.report.formatting import place_name
from acclimate.results.cells import DASH, Entry, Table, interval_entry, number_entry, signed_entry
from acclimate.results.scores import HELPED, HURT, NO_DIFFERENCE, VERDICTS, WITHHELD, Interval, TaskScores
from acclimate.results.study import StudyResults
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, Place, register, used_kinds

SHEET = (
    "Number of measurements in each group whose 95 % interval shows that the adaptation helped, that it hurt, or "
    "no difference. Groups are those of the study. The next table has each measurement with its interval."
)
MEASUREMENTS = (
    "Scores of fine-tuned models are compared with the baseline ({baseline}), all else with the base model. Scores in "
    "percent, differences in percentage points; losses in nats per predicted token or bits per byte, of which less is "
    "better."
)


class CapabilityRow(Record):
    """A measurement of an adapted model in a group of capabilities, compared with before the adaptation.

    Attributes:
        group: Name of the group.
        measure: What is measured: a task, a text, ``"instructions"``, pairs or a benchmark.
        unit: ``"points"``, percentage points of a score, of which more is better; or that of a loss.
        before: Mean of what the method is compared with: the baseline for fine-tuned models, else the base model.
        after: Mean of the method.
        difference: After minus before; None if the two cannot be compared.
    """

    group: str = ""
    measure: str
    model: str
    domain: str
    task: str | None = optional()
    method: str
    unit: str
    before: float | None = None
    after: float | None = None
    difference: Interval | None = optional()

    @property
    def verdict(self) -> str:
        """What the difference shows, or why there is no verdict."""
        return WITHHELD if self.difference is None else self.difference.verdict


@register("capabilities", summary="measurements in groups that the study names")
class Capabilities(Job):
    """Groups the measurements of all kinds of jobs; there are no jobs of this kind."""

    row_type: ClassVar[type[Record] | None] = CapabilityRow
    setting: ClassVar[str] = "capabilities"
    on_top: ClassVar[bool] = True

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that the study makes every measurement that its groups name.

        Raises:
            UserError: If it does not.
        """
        known = dict.fromkeys(name for kind in used_kinds(inputs.config) for name in kind.measurements(inputs))
        for group, names in (inputs.config.capabilities or {}).items():
            for name in names:
                if name not in known:
                    raise UserError(
                        f"study: capabilities: '{group}' names '{name}', which this study does not measure."
                        f"{did_you_mean(name, known)} It measures: {', '.join(known) or 'nothing'}."
                    )

    @classmethod
    def combine(cls, found: Sequence[Any], inputs: StudyInputs) -> list[Any]:
        """Return the measurements that the groups of the study name, in the order of the groups."""
        return [
            replace(row, group=group)
            for group, names in (inputs.config.capabilities or {}).items()
            for name in names
            for row in found
            if row.measure == name
        ]

    @classmethod
    def tables(cls, results: StudyResults) -> list[Table]:
        """Return the sheet, with a row per method and a column per group, and the table of its measurements."""
        found = results.rows[cls.name]
        groups = list(dict.fromkeys(row.group for row in found))
        places: dict[tuple[str, str], list[CapabilityRow]] = {}
        for row in found:
            places.setdefault((_place(results, row), row.method), []).append(row)
        columns = ["adapted to", "method", *groups]
        sheet = Table("Capability sheet", SHEET, columns)
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
        note = MEASUREMENTS.format(baseline=results.baseline)
        table = Table("Measurements by capability", note, columns, grouped=True)
        table.rows = [_measurement(results, row) for row in found]
        return [sheet, table]


def score_measurement(row: TaskScores, measure: str, task: str | None = None) -> CapabilityRow | None:
    """Return the measurement of a row of scores; None for a row without a comparison.

    Args:
        row: The row.
        measure: Name of the measurement.
        task: The task that the model was adapted for alone; None if it was adapted for the whole domain.
    """
    entry = row.comparison
    place = Place(model=row.model, domain=row.domain, method=row.method, adapted_for=task)
    return None if entry is None else measurement(place, measure, entry.before, entry.after, entry)


def measurement(
    place: Place, measure: str, before: npt.ArrayLike, after: npt.ArrayLike, entry: Interval
) -> CapabilityRow:
    """Return a measurement of which more is better, in percentage points.

    Args:
        place: Place of the adapted model.
        measure: Name of the measurement.
        before: Values of what it is compared with, as shares.
        after: Values of the adapted models, as shares.
        entry: The difference of their means.
    """
    ends = {name: 100 * getattr(entry, name) for name in ("difference", "low", "high")}
    return CapabilityRow(
        measure=measure,
        model=str(place.model),
        domain=str(place.domain),
        task=place.adapted_for,
        method=str(place.method),
        unit="points",
        before=100 * float(np.asarray(before, dtype=float).mean()),
        after=100 * float(np.asarray(after, dtype=float).mean()),
        difference=Interval(**ends, p=entry.p, verdict=entry.verdict),
    )


def _place(results: StudyResults, row: CapabilityRow) -> str:
    return place_name(results, row.model, row.domain, row.task)


def _count(rows: Sequence[CapabilityRow]) -> Entry:
    """Return how many measurements got better and worse; marked if all changes go one way."""
    if not rows:
        return DASH
    verdicts = [row.verdict for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    ways = [verdict for verdict in (HELPED, HURT) if counts[verdict]]
    mark = "" if len(ways) > 1 else next(iter(ways), NO_DIFFERENCE)
    return Entry(", ".join(parts), counts[HELPED] - counts[HURT], mark)


def _measurement(results: StudyResults, row: CapabilityRow) -> list[Entry]:
    digits = 1 if row.unit == "points" else 3
    name = row.measure if row.unit == "points" else f"{row.measure}, {row.unit}"
    cells = [Entry(row.group), Entry(name), Entry(_place(results, row)), Entry(row.method)]
    cells += [number_entry(row.before, digits), number_entry(row.after, digits)]
    if row.difference is None:
        return [*cells, DASH, DASH, DASH]
    change = [signed_entry(row.difference.difference, digits), interval_entry(row.difference, 1, digits)]
    return [*cells, *change, Entry(row.verdict, None, row.verdict)]
