"""Tables about the scores on end tasks that only some kinds of tasks have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.evaluation.review import ReviewScoring
from acclimate.evaluation.significance import paired_bootstrap
from acclimate.results.scores import WITHHELD, Interval, ScoreRow, verdict_word
from acclimate.results.study import ReportTable
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import JobResult, StudyView
from acclimate.study.settings import TaskSpec
from acclimate.study.summary import TaskRuns, is_replicated, pair_by_seed, replicate_groups, scoring_of

Runs = Mapping[tuple[str | None, ...], TaskRuns]
"""Runs by model, domain, task and row label."""
RESAMPLES = 500
"""Bootstrap resamples of measures of a ranking, each of which sorts the items."""


def score_tables(view: StudyView, found: Runs, scores: Sequence[ScoreRow]) -> list[ReportTable]:
    """Return the tables; those that no task has have no rows."""
    own = [_references(view, found), _error_kinds(found), _measured_errors(scores), _reviews(view, found)]
    return [*own, prompt_table(found.values())]


PROMPTS_TITLE = "Prompts of each model"
PROMPTS = (
    "Template and number of solved examples that a model chose on dev, each seed on its own part, with the score "
    "there and the lowest and highest score over all prompts, in percent. All models choose among the same prompts, "
    "and none was chosen on test. Differences between prompts that are larger than those between models show that one "
    "prompt for all could have decided the comparison."
)


def prompt_table(found: Iterable[Sequence[JobResult[Any]]]) -> ReportTable:
    """Return a table of the prompts that models chose; without rows if there was nothing to choose."""
    columns = ["model", "domain", "task", "method", "prompt", "examples", "seeds", "dev, %", "lowest", "highest"]
    table = ReportTable(title=PROMPTS_TITLE, note=PROMPTS, columns=columns, digits=1)
    for runs in found:
        chosen: dict[int, list[JobResult[Any]]] = {}
        for run in runs:
            if run.result.prompts and run.result.chosen is not None:
                chosen.setdefault(run.result.chosen, []).append(run)
        for number, mine in chosen.items():
            prompts = [run.result.prompts for run in mine]
            dev = np.array([[prompt.dev for prompt in asked] for asked in prompts], dtype=float).mean(0)
            place, prompt = mine[0].job.place, prompts[0][number]
            name = place.task or place.text
            cells = [place.model, place.domain, name, place.method or "base model", repr(prompt.template)]
            seeds = ", ".join(str(run.job.place.seed) for run in mine)
            scores = [100 * float(value) for value in (dev[number], dev.min(), dev.max())]
            table.rows.append([*cells, prompt.shots, seeds, *scores])
    return table


REFERENCES = (
    "Scores in percent of what every fine-tuned model is compared with: BM25, alone or fused with the model (hybrid), "
    "chance, the same model before it was trained on the task or with cut vectors, or the first stage of a reranker. "
    "Means over seeds; the interval of the difference is over test items, for the first seed."
)


def _references(view: StudyView, found: Runs) -> ReportTable:
    """Return a table of what the models are compared with; without rows if their kinds have no such reference."""
    columns = ["model", "domain", "task", "method", "other", "metric", "theirs", "ours", "difference", "from", "to"]
    table = ReportTable(title="Comparison with other answers", note=REFERENCES, columns=columns, digits=1)
    for (model, domain, task, method), runs in found.items():
        metric = view.inputs.tasks[str(domain), str(task)].metric
        results = [run.result.metrics for run in runs]
        for name, first in results[0].get("references", {}).items():
            theirs = float(np.mean([result["references"][name][metric] for result in results]))
            ours = float(np.mean([result[metric] for result in results]))
            interval = [first["difference"][end] for end in ("low", "high")]
            numbers = [100 * value for value in (theirs, ours, ours - theirs, *interval)]
            table.rows.append([model, domain, task, method, name, metric, *numbers])
    return table


ERRORS = (
    "Numbers of entities in the test split, means over seeds: correct; with the right type and wrong boundaries; the "
    "reverse; both wrong, but with a common part; not found; and predicted where there is none."
)


def _error_kinds(found: Runs) -> ReportTable:
    """Return a table of the kinds of errors; without rows if no kind of task distinguishes them."""
    counted = {place: [run.result.metrics["errors"] for run in runs] for place, runs in found.items()
               if all("errors" in run.result.metrics for run in runs)}  # fmt: skip
    kinds = list(dict.fromkeys(kind for errors in counted.values() for kind in errors[0]))
    columns = ["model", "domain", "task", "method", *kinds]
    rows = [
        [*place, *(float(np.mean([error[kind] for error in errors])) for kind in kinds)]
        for place, errors in counted.items()
    ]
    return ReportTable(title="Kinds of errors", note=ERRORS, columns=columns, rows=rows, digits=1)


MEASURED = (
    "In the unit of the target, means over seeds; lower is better. Difference to the baseline, with its 95 % interval "
    "and p as in the scores."
)


def _measured_errors(scores: Sequence[ScoreRow]) -> ReportTable:
    """Return a table of the errors of predicted numbers; without rows if there are no such tasks."""
    columns = ["model", "domain", "task", "method", "measure", "mean", "verdict", "difference", "from", "to", "p"]
    table = ReportTable(title="Errors in the unit of the target", note=MEASURED, columns=columns)
    for row in scores:
        for name in row.errors:
            entry = row.difference.metrics.get(name) if row.difference else None
            cells = [verdict_word(entry), entry.difference, entry.low, entry.high, entry.p] if entry else [None] * 5
            place = [row.model, row.domain, row.task, row.method]
            table.rows.append([*place, name, row.summaries[name].mean, *cells])
    return table


REVIEW = (
    "Measures of a label where it has the prevalence that the study gives, in percent: of the predictions, and the "
    "share of all its texts that people find who review the given share of all texts, those with the highest scores "
    "first. Means over seeds. Difference: to the baseline, in percentage points, with a 95 % interval over seeds and "
    "test items. The texts of each class are assumed to be like those of the test split."
)


def check_reviews(inputs: StudyInputs) -> None:
    """Check that the label of each ``review`` is one of a classification, and on some test items.

    Raises:
        UserError: If it is not.
    """
    for domain in inputs.config.domains:
        for spec in domain.tasks:
            if spec.review is None:
                continue
            task = inputs.tasks[domain.name, spec.name].task
            where = f"study: 'review' of the task '{spec.name}'"
            if task.scoring().name not in ("single_label", "multi_label"):
                raise UserError(f"{where} needs a classification; remove it there.")
            if spec.review.positive not in task.labels:
                error = unknown_name_error("label", spec.review.positive, task.labels)
                raise UserError(f"{where}: {error}")
            truth = {is_label(example.label, task.labels.index(spec.review.positive)) for example in task.test}
            if len(truth) < 2:
                raise UserError(f"{where} needs test items with and without '{spec.review.positive}'.")


def is_label(value: int | Sequence[int], label: int) -> bool:
    """Return whether an answer, a class number or several, has a label."""
    return value == label if isinstance(value, int) else label in value


def _reviews(view: StudyView, found: Runs) -> ReportTable:
    """Return a table of the measures at the prevalence in use; without rows if no task gives one."""
    config, columns = view.inputs.config, ["model", "domain", "task", "method", "measure", "mean"]
    table = ReportTable(title="At the prevalence in use", note=REVIEW, columns=[*columns, *CHANGE], digits=1)
    specs = {(domain.name, task.name): task for domain in config.domains for task in domain.tasks}
    for (model, domain, task, method), runs in found.items():
        spec = specs[str(domain), str(task)]
        if spec.review is None or any(run.result.scores is None for run in runs):
            continue
        known = scoring_of(runs[0].result)
        scoring = ReviewScoring(
            spec.review.prevalence, tuple(spec.review.budgets), groups=known.groups, group_name=known.group_name
        )
        base = () if method == config.baseline else found.get((model, domain, task, config.baseline), ())
        for measure in scoring.metrics:
            cells = _review_cells(runs, base, spec, scoring, measure)
            table.rows.append([model, domain, task, method, measure, *cells])
    return table


CHANGE = ("difference", "from", "to", "verdict")


def _review_cells(
    runs: TaskRuns, base: TaskRuns, spec: TaskSpec, scoring: ReviewScoring, measure: str
) -> list[float | str | None]:
    """Return the mean of a measure over seeds, and its difference to the baseline with interval and verdict."""
    assert spec.review is not None
    label = runs[0].result.labels.index(spec.review.positive)
    gold = [is_label(value, label) for value in runs[0].result.gold]

    def ranked(side: TaskRuns) -> list[list[tuple[bool, float]]]:
        return [
            [
                (is_label(shown, label), score)
                for shown, score in zip(run.result.predicted, run.result.scores or (), strict=True)
            ]
            for run in side
        ]

    mean = float(np.mean([scoring.score(gold, predicted, measure) for predicted in ranked(runs)]))
    pairs = [(run, other) for run, other in pair_by_seed(runs, base) if other.result.scores is not None]
    if not pairs:
        return [100 * mean, None, None, None, None]
    jobs = [(run.job, other.job) for run, other in pairs]
    ours, theirs = (ranked(side) for side in zip(*pairs, strict=True))
    made = paired_bootstrap(
        gold, ours, theirs, measure, RESAMPLES, seed_groups=replicate_groups(jobs), scoring=scoring
    )
    entry: Interval = Interval.from_dict(made.as_dict())
    verdict = entry.verdict if is_replicated(jobs) else WITHHELD
    return [100 * value for value in (mean, entry.difference, entry.low, entry.high)] + [verdict]
