"""Whether fine-tuning of the base model has learned a task of a study: if not, methods cannot be compared on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from acclimate.evaluation.learning import still_falls
from acclimate.results.scores import NOT_LEARNED, Comparison, Learning, ScoreRow
from acclimate.results.study import ProbeResult, ProbeScore
from acclimate.study.config import StudyConfig
from acclimate.study.job import Job, JobResult, StudyView
from acclimate.study.settings import UNADAPTED
from acclimate.study.summary import TaskResult, TaskRuns, compare_runs

FLOOR, LINEAR = "floor", "linear"
"""Name of the kind of job that measures what fine-tuning has to beat, and of the probe in it."""


def probe_run(job: Job, result: ProbeResult, score: ProbeScore) -> JobResult[TaskResult]:
    """Return a fit of a probe in the form of a fine-tuning."""
    fit = TaskResult(
        task=result.task,
        metrics=score.metrics,
        gold=result.gold,
        predicted=score.predicted,
        labels=result.labels,
        seconds=result.seconds,
        train_size=score.train_size,
        kind=result.kind,
        scoring=result.scoring,
    )
    return JobResult(job, fit)


def judge(runs: TaskRuns, floor: JobResult[ProbeResult] | None, metric: str) -> Learning:
    """Return how fine-tuning of the base model compares with a linear model on its frozen states.

    Args:
        runs: Fine-tunings of the base model on a task.
        floor: The probe, which was fitted on the rows of each seed of few-shot learning, or once on all.
        metric: The metric of the task.
    """
    compared = None
    if floor is not None:
        scores = [score for score in floor.result.scores if score.probe == LINEAR]
        fits = [
            probe_run(floor.job.at(seed=run.job.place.seed), floor.result, score)
            for run in runs
            for score in scores
            if score.labels is None or score.draw == run.job.place.seed
        ]
        found = compare_runs(runs, fits, metrics=[metric])
        compared = None if found is None else found.metrics[metric]
    falling = sum(still_falls(run.result.losses or ()) for run in runs)
    return Learning(probe=compared, falling=falling, seeds=len(runs))


def judge_base(view: StudyView) -> dict[tuple[str | None, ...], Learning]:
    """Return what is known of the learning of each base model, by model, domain, task and row label."""
    config, found = view.inputs.config, dict[tuple[str | None, ...], Learning]()
    floors = {_place(one.job): one for one in view.find(ProbeResult, lambda job: job.name == FLOOR)}
    labels = base_labels(config)
    for runs in view.group(TaskResult, lambda job: is_base_run(job, labels)).values():
        place = runs[0].job.place
        metric = view.inputs.tasks[str(place.domain), str(place.task)].metric
        found[_place(runs[0].job)] = judge(runs, floors.get(_place(runs[0].job)), metric)
    return found


def base_labels(config: StudyConfig) -> list[str]:
    """Return the labels of the rows that fine-tune a base model as it is."""
    return [method.label for method in config.methods if method.name == UNADAPTED]


def is_base_run(job: Job, labels: Sequence[str]) -> bool:
    """Return whether a job scores the base model, whose rows have these labels, outside a search."""
    return job.is_scored and job.place.search is None and job.place.method in labels


def _place(job: Job) -> tuple[str | None, ...]:
    return job.place.model, job.place.domain, job.place.task, job.place.method


def withhold_verdicts(rows: Iterable[ScoreRow]) -> None:
    """Replace the verdicts on the tasks that the base model has not learned."""
    rows = list(rows)
    places = {(row.model, row.domain, row.task) for row in rows if row.learning and not row.learning.has_learned}
    for row in rows:
        if row.difference and (row.model, row.domain, row.task) in places:
            entries: Mapping[str, Comparison] = row.difference.metrics
            row.difference.metrics = {name: entry.without_verdict(NOT_LEARNED) for name, entry in entries.items()}
