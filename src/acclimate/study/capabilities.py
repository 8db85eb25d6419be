"""The capability sheet of a study: its measurements in groups that the study names, with what was gained and lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from acclimate.base.errors import UserError, did_you_mean
from acclimate.results.comparisons import CapabilityRow
from acclimate.results.scores import Interval, TaskScores
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Place, kinds


def check_capabilities(inputs: StudyInputs) -> None:
    """Check that the study makes every measurement that its groups of capabilities name.

    Raises:
        UserError: If it does not.
    """
    known = dict.fromkeys(name for kind in kinds() for name in kind.measurements(inputs))
    for group, names in (inputs.config.capabilities or {}).items():
        for name in names:
            if name not in known:
                raise UserError(
                    f"study: capabilities: '{group}' names '{name}', which this study does not measure."
                    f"{did_you_mean(name, known)} It measures: {', '.join(known) or 'nothing'}."
                )


def group_measurements(config: StudyConfig, found: Sequence[CapabilityRow]) -> list[CapabilityRow]:
    """Return the measurements that the groups of a study name, in the order of the groups."""
    return [
        replace(row, group=group)
        for group, names in (config.capabilities or {}).items()
        for name in names
        for row in found
        if row.measure == name
    ]


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
