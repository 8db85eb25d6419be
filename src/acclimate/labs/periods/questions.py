"""`acclimate periods questions`: how well decoders answer questions whose answers have dates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.options import verb
from acclimate.evaluation.significance import paired_difference, share_interval
from acclimate.labs.periods.dated_tasks import open_output, place_rows, write_report
from acclimate.labs.periods.decay import TemporalReport
from acclimate.labs.periods.options import PeriodsQuestionsOptions
from acclimate.tasks.finetune import finetune


@verb(PeriodsQuestionsOptions)
def periods_questions(options: PeriodsQuestionsOptions) -> TemporalReport:
    """Answer multiple-choice questions with decoders as they are, and compare their accuracy period by period.

    A question has the date of its answer; the same question may occur with several dates and answers. A choice
    is scored by its likelihood after the question, as by ``finetune --epochs 0``. Takahashi et al. (2024) measure in
    this way whether pre-training on recent documents updates what a model knows.

    Returns:
        ``rows``, for each model and period the ``accuracy`` with the ends of its 95 % interval (Wilson), ``chance``,
        the number of ``questions``, and for all models but the first the ``difference`` to it with its interval over
        questions (``difference_low``, ``difference_high``); the last period, ``all``, has all questions.

    Raises:
        UserError: If the questions have no dates or no choices, too few have one, or a model is no decoder.
    """
    models = dict(cast(Mapping[str, Any], options.models))
    placed = place_rows(options)
    if placed.task.task_kind != "choice":
        raise UserError(
            f"'{placed.task.name}' is of the kind '{placed.task.task_kind}'; give questions with choices, see "
            "docs/data.md."
        )
    periods = placed.report.keep(options.least, 1, "question")
    folder = open_output(options.out, "questions")
    used = [place for place, period in enumerate(placed.periods) if period in periods]
    task = placed.part(placed.task.train[:1], [placed.task.test[place] for place in used])
    own = np.array([periods.index(placed.periods[place]) for place in used])
    chance = np.array([1 / len(item.choices) for item in task.test])
    groups = task.scoring().groups
    hits: dict[str, np.ndarray] = {}
    for name, model in models.items():
        result = finetune(model, task, epochs=0, max_length=options.max_length, progress=options.progress)
        hits[name] = np.equal(result.gold, result.predicted).astype(float)
    first, rows = next(iter(hits)), list[dict[str, Any]]()
    for place, period in [*enumerate(period.name for period in periods), (-1, "all")]:
        mine = own == place if place >= 0 else own >= 0
        for name, right in hits.items():
            units = groups and np.unique(np.asarray(groups)[mine], return_inverse=True)[1].tolist()
            least, most = share_interval(right[mine], units)
            row: dict[str, Any] = {
                "period": period,
                "model": name,
                "questions": int(mine.sum()),
                "accuracy": float(right[mine].mean()),
            }
            row |= {"low": least, "high": most, "chance": float(chance[mine].mean())}
            change = None if name == first else paired_difference(right[mine], hits[first][mine], groups=units)
            row["difference"] = change and change.difference
            row |= {f"difference_{end}": change and getattr(change, end) for end in ("low", "high")}
            rows.append(row)
    lines = list(placed.report.describe())
    for row in rows:
        text = (
            f"{row['period']}, {row['model']}: {100 * row['accuracy']:.1f} % of {row['questions']:,} questions "
            f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}], chance {100 * row['chance']:.1f} %"
        )
        if row["difference"] is not None:
            low, high = (f"{100 * row[f'difference_{end}']:+.1f}" for end in ("low", "high"))
            text += f"; difference to {first} {100 * row['difference']:+.1f} percentage points [{low}, {high}]"
        lines.append(text)
    content = {"rows": rows, "dates": placed.report.to_dict()}
    return write_report(folder, "questions", "Questions over time", content, lines, {"Accuracy by period": rows})
