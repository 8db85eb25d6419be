"""What ``--require`` can name in a study: its measurements, by the names that its capability sheet has.

These are its tasks (also those of other domains, which show what was forgotten), ``domain text`` and ``general text``
(the loss, of which less is better), benchmarks, instructions and pairs; with several tasks also ``mean``, their mean;
and ``TASK:METRIC`` for every metric and error of a task. All are differences to what the study compares with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from acclimate.results.requirements import Bounds, Decision, Requirement, check_names, decide
from acclimate.results.scores import ForgettingRow
from acclimate.results.study import StudyResults
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import used_kinds
from acclimate.study.jobs.lm_loss import LmLossJob
from acclimate.study.jobs.prompting import row_label

MEAN = "mean"


def check_study_names(requirements: Sequence[Requirement], inputs: StudyInputs) -> None:
    """Check that a study measures what is required, before anything is trained.

    Raises:
        UserError: If it does not, or the sign of a requirement has the wrong direction.
    """
    names, errors = _names(inputs)
    check_names(requirements, names, errors)


def decide_study(requirements: Sequence[Requirement], inputs: StudyInputs, results: StudyResults) -> Decision:
    """Decide whether each requirement holds for all methods, models and domains of a study; see the module.

    While jobs are left, everything is undecided: what they will measure may change each answer.
    """
    names, _ = _names(inputs)
    if results.jobs.left:
        why = f"{results.jobs.left:,} of {results.jobs.total:,} jobs are left"
        return decide(requirements, {name: [Bounds.missing(why)] for name in names})
    return decide(requirements, {**{name: [] for name in names}, **_bounds(results)})


def _names(inputs: StudyInputs) -> tuple[list[str], list[str]]:
    """Return the names of what a study measures, and those of which lower values are better."""
    config, kinds = inputs.config, used_kinds(inputs.config)
    measured = [name for kind in kinds for name in kind.measurements(inputs)]
    losses = list(LmLossJob.measurements(inputs))
    metrics, errors = list[str](), list[str]()
    places = [(domain.name, task) for domain in config.domains for task in domain.tasks]
    for home, spec in [*places, *(("", task) for task in config.other_tasks)]:
        scoring = inputs.tasks[home, spec.name].task.scoring(negative=spec.negative)
        metrics += [f"{spec.name}:{metric}" for metric in scoring.metrics]
        errors += [f"{spec.name}:{error}" for error in scoring.errors]
    mean = [MEAN] if len(places) > 1 and MEAN not in measured else []
    return [*dict.fromkeys([*measured, *mean, *metrics, *errors])], [*losses, *errors]


def _bounds(results: StudyResults) -> dict[str, list[Bounds]]:
    """Return everything that a study measures, by name."""
    found: dict[str, list[Bounds]] = {}
    for row in results.measured or ():
        of = _label(results, row.method, row.model, row.domain, row.task)
        is_score = row.unit == "points"
        shown = {"of": of, "scale": 1.0, "unit": row.unit, "is_error": not is_score}
        made = Bounds.missing("before and after cannot be compared", **shown)
        if row.difference is not None:
            made = Bounds.of_interval(row.difference, **shown)
        found.setdefault(row.measure, []).append(made)
    for mean in results.means if MEAN not in found else ():
        if mean.difference is not None:
            bounds = Bounds.of_interval(mean.difference, of=_label(results, mean.method, mean.model))
            found.setdefault(MEAN, []).append(bounds)
    for score in itertools.chain(results.scores, results.forgetting):
        adapted_for = score.adapted_for if isinstance(score, ForgettingRow) else None
        of = _label(results, score.method, score.model, score.domain, adapted_for)
        for metric, entry in score.difference.metrics.items() if score.difference else ():
            is_score = metric in score.metrics
            shown = {"of": of} if is_score else {"of": of, "scale": 1.0, "unit": "", "is_error": True}
            found.setdefault(f"{score.task}:{metric}", []).append(Bounds.of_interval(entry, **shown))
    return found


def _label(results: StudyResults, method: str, model: str, domain: str | None = None, task: str | None = None) -> str:
    """Name an adapted model by its method, and by the base model and the domain if the study has several."""
    parts = [model if len(results.models) > 1 else None, domain if len(results.domains) > 1 else None]
    return " · ".join(filter(None, [*parts, row_label(method, task)]))
