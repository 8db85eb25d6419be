"""Dry run: remaining jobs of a study and their estimated time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from acclimate.adaptation.method import lookup
from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import UserError
from acclimate.study.backend import Backend
from acclimate.study.budget import FEWEST_TOKENS, FINISHED, Durations, divide_time
from acclimate.study.compare import check_study_folder, prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import JobStore
from acclimate.study.graph import read_study
from acclimate.study.job import Job, JobGraph, Outcome
from acclimate.study.jobs.adapt import AdaptJob
from acclimate.study.search import final_graph, run_search


@dataclass
class JobEstimate:
    """The jobs of one kind in one part of a study.

    Attributes:
        part: ``"search 1"``, ``"search 2"``, ... or ``"study"``.
        kind: Name of the kind.
        jobs: Number of jobs.
        done: Number of jobs with a result.
        seconds: Estimated seconds for the remaining jobs in one process; None if nothing says how long they take.
        source: What the estimate is made from: see :data:`acclimate.study.budget.FINISHED`.
    """

    part: str
    kind: str
    jobs: int
    done: int
    seconds: float | None
    source: str = ""


@dataclass
class Forecast:
    """The remaining work of a study.

    Attributes:
        estimates: The jobs by part and kind. A job that several parts need counts in the first one.
        guessed: Whether some settings have not been chosen yet. Later parts are then planned with the first
            combination of each incomplete search.
        rows: Estimated seconds of the remaining jobs of each row of the study, by label.
        prepared: What methods do before the first step, which is not in the estimates, by label of the row.
        notes: How the time of ``minutes`` would be divided, and what could not be timed.
    """

    estimates: list[JobEstimate]
    guessed: bool
    rows: dict[str, float] = field(default_factory=dict)
    prepared: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """Estimated seconds for all remaining jobs; None if the estimate of any part is unknown."""
        left = [estimate.seconds for estimate in self.estimates if estimate.done < estimate.jobs]
        return None if None in left else sum(seconds or 0.0 for seconds in left)

    @property
    def is_timed(self) -> bool:
        """Whether an estimate is not from finished jobs alone."""
        return any(estimate.source not in ("", FINISHED) for estimate in self.estimates)


def forecast(
    config: StudyConfig | str | Path,
    out: str | Path,
    backend: Backend | None = None,
    *,
    timing: float = 0.0,
    minutes: float | None = None,
    progress: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Forecast:
    """Plan a study and look up which jobs are done. No job is computed, and nothing is written to ``out``.

    With ``leakage: remove`` the corpora are searched for dev and test texts, since the documents to remove determine
    the identity of the jobs; the findings are cached for the study.

    A job is estimated by the mean duration of the finished jobs in ``out`` that have the same kind, model, method,
    domain, task and text, or else of all finished jobs of the same kind. Jobs of earlier versions of the study count
    as well. Without such jobs, ``timing`` measures the speed of this machine with small jobs
    (:meth:`acclimate.study.job.Job.pilots`), and kinds without them are estimated by their typical cost.

    Args:
        config: The study, or the path of its file.
        out: Folder of the study; it need not exist.
        backend: The expensive functions; by default those of this package.
        timing: About how many seconds to time this machine, without loading models; 0 to leave estimates out.
        minutes: Time for a study without a budget; a note then says how many tokens an adaptation could read.
        progress: Say that this machine is timed.
        clock: Returns the current time in seconds.

    Raises:
        UserError: If the study cannot be run.
    """
    config, backend = config if isinstance(config, StudyConfig) else StudyConfig.load(config), backend or Backend()
    out = check_study_folder(out)
    inputs, _ = prepare(read_study(config, backend), cached_only=True)
    store, graphs = JobStore(out), list[JobGraph]()

    def look_up(graph: JobGraph) -> dict[str, Outcome]:
        graphs.append(graph)
        return {key: store.outcome(job) for key, job in graph.jobs.items()}

    found = run_search(inputs, look_up, guess=True)
    guessed, found.complete = not found.complete, True
    parts = [*(f"search {number}" for number in range(1, len(graphs) + 1)), "study"]
    graphs.append(final_graph(inputs, found))
    planned: dict[str, tuple[str, Job]] = {}
    for part, graph in zip(parts, graphs, strict=True):
        for key, job in graph.jobs.items():
            planned.setdefault(key, (part, job))
    left = {key: job for key, (_, job) in planned.items() if store.result(job) is None}
    durations = Durations(store.finished())
    if timing:
        durations.time(left.values(), backend, timing, progress=progress, clock=clock)
    seconds = dict(zip(left, durations.estimate_all(list(left.values()), by_cost=timing > 0), strict=True))
    result = Forecast(_by_kind(planned, seconds), guessed)
    for key, job in left.items():
        if job.place.method in config.row_labels and (estimate := seconds[key]) is not None:
            result.rows[job.place.method] = result.rows.get(job.place.method, 0.0) + estimate[0]
    adapted = {job.place.method for job in left.values() if isinstance(job, AdaptJob)}
    for method in config.methods:
        if method.label in adapted and (what := lookup(method.name).preparation):
            result.prepared[method.label] = what
    if minutes is not None and not config.adapt.given().keys() & set(BUDGETS):
        result.notes.append(_describe_budget(minutes, left, seconds, durations))
    result.notes += [f"Jobs of the kind {kind} could not be timed: {why}" for kind, why in durations.problems.items()]
    return result


def _by_kind(
    planned: Mapping[str, tuple[str, Job]], seconds: Mapping[str, tuple[float, str] | None]
) -> list[JobEstimate]:
    """Return the estimates of jobs by part and kind; those without an entry in ``seconds`` are done."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key, (part, job) in planned.items():
        groups.setdefault((part, job.name), []).append(key)
    estimates = []
    for (part, kind), keys in groups.items():
        left = [key for key in keys if key in seconds]
        known = [estimate for key in left if (estimate := seconds[key]) is not None]
        total = sum(estimate[0] for estimate in known) if len(known) == len(left) else None
        source = known[0][1] if known else ""
        estimates.append(JobEstimate(part, kind, len(keys), len(keys) - len(left), total, source))
    return estimates


def _describe_budget(
    minutes: float,
    left: Mapping[str, Job],
    seconds: Mapping[str, tuple[float, str] | None],
    durations: Durations,
) -> str:
    """Return a sentence on the tokens that each adaptation could read in a time for the whole study."""
    adaptations = [job for job in left.values() if isinstance(job, AdaptJob) and not job.is_shared_base]
    others = [key for key, job in left.items() if job not in adaptations]
    fixed, per_token, corpus_tokens = sum((seconds[key] or (0.0, ""))[0] for key in others), 0.0, 0.0
    for job in adaptations:
        pilot = durations.pilots.get((job.name, job.place.model))
        if pilot is None:
            return "No adaptation could be timed, so --minutes says nothing here."
        loading, more = (
            replace(job, options={**job.options, "tokens": tokens}).expected_seconds(pilot)
            for tokens in (0, FEWEST_TOKENS)
        )
        fixed, per_token = fixed + loading, per_token + (more - loading) / FEWEST_TOKENS
        corpus_tokens = max(corpus_tokens, job.corpus_tokens(pilot[0]))
    try:
        return divide_time(minutes, fixed, len(others), per_token, len(adaptations), corpus_tokens)[1]
    except UserError as error:  # the estimates are of use nevertheless
        return str(error)
