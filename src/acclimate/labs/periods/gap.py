"""`acclimate periods gap`: how a model that was fine-tuned on one period scores on earlier and later ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.options import values, verb
from acclimate.base.verbs import Next
from acclimate.data.documents import format_count
from acclimate.labs.periods.dated_tasks import (
    Trainings,
    choose_metric,
    open_output,
    read_dated_task,
    sample,
    show_periods,
    write_report,
)
from acclimate.labs.periods.decay import ScoreMatrix, TemporalReport, write_matrix
from acclimate.labs.periods.options import PeriodOptions, PeriodsGapOptions


@verb(PeriodsGapOptions)
def periods_gap(options: PeriodsGapOptions) -> TemporalReport:
    """Fine-tune a model on the rows of each period, and score each on the test rows of all periods.

    All models learn from the same number of rows, drawn anew for each seed, and are tested on the same rows.
    A text that occurs in several periods counts for the first. With ``out``, a command that was interrupted resumes.

    The matrix and its decay with distance follow Luu et al. (2022). Longpre et al. (2023) measure them for
    pre-training text of different ages.

    Returns:
        ``matrix``, a row per model with its score on each period; ``by_distance``, the scores by distance in time with
        the difference to the model of the same period and its 95 % interval over items and seeds; ``loss_per_unit``,
        the temporal degradation (:meth:`acclimate.labs.periods.decay.ScoreMatrix.loss_per_unit`).

    Raises:
        UserError: If the task has no dates, too few periods have enough rows, or a training fails.
    """
    dated = read_dated_task(options)
    smallest = min(len(examples) for examples in dated.train.values())
    size = smallest if options.train_size is None else options.train_size
    if size > smallest:
        name = next(period.name for period, found in dated.train.items() if len(found) == smallest)
        raise UserError(f"The period {name} has {smallest:,} train rows, fewer than --train-size {size:,}.")
    metric, scoring = choose_metric(options, dated.task)
    folder = open_output(options.out, "gap")
    trainings = Trainings(options, folder)
    runs = [
        [
            trainings.run(
                options.model, dated.placed.part(sample(train, size, f"{period.name}/{seed}"), dated.tested), seed
            )
            for seed in range(options.seeds)
        ]
        for period, train in dated.train.items()
    ]
    columns = [dated.column(period, runs, metric) for period in dated.periods]
    matrix = ScoreMatrix(dated.periods, columns, is_error=metric in scoring.errors)
    measured = write_matrix(matrix)
    sizes = {period.name: {"train": size, "test": len(dated.test[period])} for period in dated.periods}
    tested = ", ".join(f"{name} {found['test']:,}" for name, found in sizes.items())
    lines = [
        *dated.notes,
        f"Each model learned from {size:,} rows and is tested on: {tested}. {format_count(options.seeds, 'seed')}.",
        *matrix.describe(metric, dated.report.periods.unit),
    ]
    tables = {"Scores by distance in time": measured["by_distance"], "Scores by period": measured["matrix"]}
    content = {"metric": metric, "seeds": options.seeds, "sizes": sizes, **measured, "dates": dated.report.to_dict()}
    return write_report(folder, "gap", "Models over time", content, lines, tables)


def show_gap(report: TemporalReport, options: PeriodsGapOptions) -> Iterator[Any]:
    """Yield what ``acclimate periods gap`` prints."""
    yield from show_periods(report, options)
    usual = values(PeriodOptions())
    dates = {name: getattr(options, name) for name in usual if getattr(options, name) != usual[name]}
    changed = [part for name, value in dates.items() for part in (f"--{name.replace('_', '-')}", value)]
    words = ["--model", options.model, "--task", options.task, *changed, "--out", "updated"]
    yield Next(["periods", "self-train", *words], "to keep a model current without new labels")
