"""The fine-tuned models that a study keeps: on each task the best method's, and the baseline's for comparison.

Scores come from models that are not saved, since there are many. The two models to keep are fine-tuned once more,
with the same seed and settings, when all scores are known; no score changes.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from acclimate.base.bounds import MAX_SEED
from acclimate.base.files import read_json_object, write_json
from acclimate.base.records import Record
from acclimate.results.scores import HELPED, ScoreRow
from acclimate.study.config import StudyConfig
from acclimate.study.executor import Executor
from acclimate.study.job import JobGraph, JobResult, StudyView, register
from acclimate.study.jobs.finetune import FinetuneJob, scored_runs
from acclimate.study.settings import UNADAPTED
from acclimate.study.summary import TaskResult, TaskRuns

log = logging.getLogger(__name__)

FOLDER, INDEX = "kept", "kept.json"
"""Folder of the models in the folder of a study, and the file in it that names the job of each model."""


class KeptRow(Record):
    """A fine-tuned model that a study keeps.

    Attributes:
        score: Its score on the test split.
        folder: Its folder in the folder of the study.
        chosen: Why this seed.
        best: Whether it is the model to use: the method helped, or it is the baseline and no method did.
    """

    model: str
    domain: str
    task: str
    method: str
    seed: int
    metric: str
    score: float
    folder: str
    chosen: str
    best: bool


@register("kept", summary="fine-tune the models of a study that are kept")
class KeptJob(FinetuneJob):
    """Repeat a fine-tuning of the study and save its model.

    Attributes:
        place_name: Folder of the model within :data:`FOLDER`.
    """

    place_name: str = field(compare=False)
    makes_model: ClassVar[bool] = True
    keeps_model: ClassVar[bool] = True
    counts_as_score: ClassVar[bool] = False
    options_type: ClassVar[type[Any] | None] = None
    row_type: ClassVar[type[Record] | None] = KeptRow
    title: ClassVar[str | None] = "Kept models"
    note: ClassVar[str] = (
        "One fine-tuned model of the best method on each task, and one of the baseline: the same training as for the "
        "scores, for `acclimate predict`. The best method is one that helped, if any did, and among these the one "
        "with the best mean on dev, or on test if there is no dev split. The score is of this model alone."
    )

    @property
    def folder(self) -> Path:
        """Its name says what the model is."""
        return Path(FOLDER) / self.place_name

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return that it is not: which models are kept depends on the scores."""
        return False


def keep_models(view: StudyView, scores: Sequence[ScoreRow], executor: Executor) -> list[KeptRow]:
    """Fine-tune the models to keep, unless they are there, and remove those of an earlier call that are not kept.

    Args:
        view: The finished jobs of the study.
        scores: The rows of its scores.
        executor: Executor of the study. This process trains the models, whatever computed the scores.

    Returns:
        A row for each model, in the order of the scores.
    """
    rows, jobs = list[KeptRow](), dict[str, KeptJob]()
    for row, run, chosen, best in _choose(view, scores):
        name = _folder_name(view.inputs.config, row, [job.place_name for job in jobs.values()])
        values = {entry.name: getattr(run.job, entry.name) for entry in fields(FinetuneJob)}
        job = KeptJob(**{**values, "place_name": name, "positive": None})
        job = jobs.setdefault(job.key, job)
        own = {key: row[key] for key in ("model", "domain", "task", "method", "metric")}
        score = run.result.metrics[row.metric]
        rows.append(KeptRow(**own, seed=job.seed, score=score, folder=str(job.folder), chosen=chosen, best=best))
    folder = view.out / FOLDER
    if not executor.report_only:
        wanted = {job.place_name: job.key for job in jobs.values()}
        found = read_json_object(folder / INDEX) or {}
        for name in (name for name, key in found.items() if wanted.get(name) != key):
            shutil.rmtree(folder / name, ignore_errors=True)
        if wanted != found:
            write_json(folder / INDEX, wanted)
    outcomes = replace(executor, share=None, pool=None).execute(JobGraph(jobs.values()))
    folders = {str(job.folder): outcomes[key].result for key, job in jobs.items()}
    for kept in rows:
        result = folders[kept.folder]
        if result is not None and abs(result.metrics[kept.metric] - kept.score) > 1e-6:
            log.warning(
                "The kept model in '%s' scores %.4f on test, and %.4f in the study: trainings on this device differ.",
                view.out / kept.folder,
                result.metrics[kept.metric],
                kept.score,
            )
            kept.score = result.metrics[kept.metric]
    return [row for row in rows if (view.out / row.folder / "config.json").is_file()]


def with_keep(settings: Mapping[str, Any] | None, keep: str | None) -> Mapping[str, Any] | None:
    """Return changes of a study with the option ``keep``, if it is given."""
    return {**(settings or {}), "keep": keep} if keep else settings


def planned_models(graph: JobGraph, config: StudyConfig, out: Path) -> JobGraph:
    """Return fine-tunings that take as long as those of the models to keep, before it is known which these are.

    There are none if the study keeps no models, or they are there.
    """
    if not config.keep or (out / FOLDER / INDEX).is_file():
        return JobGraph()
    found: dict[tuple[str | None, ...], dict[str | None, FinetuneJob]] = {}
    for job in graph.entries:
        if type(job) is FinetuneJob and job.is_scored:
            place = job.place
            found.setdefault((place.model, place.domain, place.task), {}).setdefault(place.method, job)
    ends = [(own.get(config.baseline), next(reversed(own.values()))) for own in found.values()]
    return JobGraph(replace(job, seed=MAX_SEED) for pair in ends for job in dict.fromkeys(pair) if job is not None)


def _choose(view: StudyView, scores: Sequence[ScoreRow]) -> list[tuple[ScoreRow, JobResult[TaskResult], str, bool]]:
    """Return the baseline and the best method on each task: the row, the run to keep, why, and whether to use it."""
    baseline, found = view.inputs.config.baseline, scored_runs(view)
    by_task: dict[tuple[str, ...], list[ScoreRow]] = {}
    for row in scores:
        own = found.get((row.model, row.domain, row.task, row.method), [])
        if own and all(type(run.job) is FinetuneJob for run in own):
            by_task.setdefault((row.model, row.domain, row.task), []).append(row)
    kept = []
    for place, rows in by_task.items():
        runs = {row.method: found[*place, row.method] for row in rows}
        on_dev = all(_dev(run, rows[0].metric) is not None for own in runs.values() for run in own)
        others = [row for row in rows if row.method != baseline]
        helped = [row for row in others if row.comparison and row.comparison.verdict == HELPED]
        best = max(helped or others, key=lambda row: _mean(runs[row.method], row.metric, on_dev), default=None)
        for row in (row for row in rows if row is best or row.method == baseline):
            own = runs[row.method]
            run = max(own, key=lambda run: _dev(run, row.metric) or 0.0) if on_dev else own[0]
            why = f"the best of {len(own)} on dev: {_dev(run, row.metric):.4f}" if on_dev else "the first seed"
            kept.append((row, run, why, (row is best) == bool(helped)))
    return kept


def _dev(run: JobResult[TaskResult], metric: str) -> float | None:
    return (run.result.dev_metrics or {}).get(metric)


def _mean(runs: TaskRuns, metric: str, on_dev: bool) -> float:
    return float(np.mean([_dev(run, metric) if on_dev else run.result.metrics[metric] for run in runs]))


def _folder_name(config: StudyConfig, row: ScoreRow, taken: Sequence[str]) -> str:
    """Return the folder of a model: its task and method, below the base model and domain if there are several."""
    parts = [row.model] * (len(config.models) > 1) + [row.domain] * (len(config.domains) > 1)
    parts += [row.task, "base" if row.method == UNADAPTED else row.method]
    name = "/".join(re.sub(r"[^\w.=-]+", "-", part).strip("-.") or "model" for part in parts)
    return name if name not in taken else f"{name}-{len(taken)}"
