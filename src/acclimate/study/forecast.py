"""How long the remaining jobs of a study take on this machine: dry runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.adaptation.method import lookup
from acclimate.base.verbs import Next, given_words
from acclimate.data.answers import CallPlan, plan_calls
from acclimate.results.requirements import parse_requirements
from acclimate.study.backend import Backend
from acclimate.study.compare import check_study_folder, prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import JobStore
from acclimate.study.fitting import plan_jobs
from acclimate.study.graph import read_study
from acclimate.study.job import Job, JobGraph, Outcome
from acclimate.study.jobs.adapt import PILOT_DOCUMENTS
from acclimate.study.keeping import planned_models
from acclimate.study.pricing import FINISHED, Durations
from acclimate.study.requirements import check_study_names


@dataclass
class JobEstimate:
    """The jobs of one kind in one part of a study.

    Attributes:
        part: ``"search 1"``, ``"search 2"``, ... or ``"study"``.
        kind: Name of the kind.
        jobs: Number of jobs.
        done: Number of jobs with a result.
        seconds: Estimated seconds for the remaining jobs in one process; None if nothing says how long they take.
        source: What the estimate is made from: see :data:`FINISHED`.
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
        prepared: What methods do before the first step, and how far it is in the estimates, by label of the row.
        notes: What was changed for the study to fit into a time, and what could not be timed.
        calls: The calls of the model or function that has yet to write or rate the text; then no job is estimated,
            since jobs depend on the answers.
    """

    estimates: list[JobEstimate]
    guessed: bool
    rows: dict[str, float] = field(default_factory=dict)
    prepared: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    calls: CallPlan | None = None

    @property
    def seconds(self) -> float | None:
        """Estimated seconds for all remaining jobs; None if the estimate of any part is unknown."""
        left = [estimate.seconds for estimate in self.estimates if estimate.done < estimate.jobs]
        return None if None in left else sum(seconds or 0.0 for seconds in left)

    @property
    def is_timed(self) -> bool:
        """Whether an estimate is not from finished jobs alone."""
        return any(estimate.source not in ("", FINISHED) for estimate in self.estimates)

    def show(self) -> Iterator[Any]:
        """Yield the jobs by kind as a table, the estimated time, and the command that runs them."""
        from rich.table import Table

        if self.calls is not None:
            yield "The text of the study depends on these answers, and the jobs on the text, so none is estimated:"
            yield from self.calls.show()
            return
        table = Table("part", "kind", "jobs", "done", "time left", "estimated from")
        for one in self.estimates:
            left = "unknown" if one.seconds is None else _duration(one.seconds)
            table.add_row(one.part, one.kind, str(one.jobs), str(one.done), left, one.source)
        yield table
        jobs, done = (sum(getattr(estimate, name) for estimate in self.estimates) for name in ("jobs", "done"))
        if done == jobs:
            yield f"All {jobs:,} jobs are done."
        elif self.seconds is None:
            yield f"{done:,} of {jobs:,} jobs are done; their duration is unknown, as no job could be timed."
        else:
            how = "a rough estimate" if self.is_timed else "estimated from the finished ones"
            time = f"about {_duration(self.seconds)} on one process, {how}"
            yield f"{done:,} of {jobs:,} jobs are done; the others take {time}."
        if len(self.rows) > 1:
            rows = ", ".join(f"{label} {_duration(seconds)}" for label, seconds in self.rows.items())
            yield f"By row: {rows}. The rest is measured on the base model."
        for label, what in self.prepared.items():
            yield f"{label}: {what}."
        if self.guessed:
            yield "The search has not chosen settings yet; jobs after it are counted with the first combination."
        yield from self.notes
        yield Next(given_words("--dry-run"), "to run it")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(0.1, seconds / 60):.1f} min" if seconds else "0"


def forecast(
    config: StudyConfig | str | Path,
    out: str | Path,
    backend: Backend | None = None,
    *,
    timed: bool = False,
    durations: Durations | None = None,
    note: str = "",
    progress: bool = False,
    require: Sequence[str] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Forecast:
    """Plan a study and look up which jobs are done. No job is computed, and nothing is written to ``out``.

    With ``leakage: remove`` the corpora are searched for dev and test texts, since the documents to remove determine
    the identity of the jobs; the findings are cached for the study.

    A job is estimated by the mean duration of the finished jobs in ``out`` that have the same kind, model, method,
    domain, task and text, or else of all finished jobs of the same kind. Jobs of earlier versions of the study count
    as well. Without such jobs, ``timed`` measures the speed of this machine with small jobs
    (:meth:`acclimate.study.job.Job.next_pilot`), and kinds without them are estimated by their typical cost.

    Args:
        config: The study, or the path of its file.
        out: Folder of the study; it need not exist.
        backend: The expensive functions; by default those of this package.
        timed: Whether to time this machine, for some seconds.
        durations: What was timed before.
        note: A sentence on the study.
        progress: Say that this machine is timed.
        require: Requirements, whose names are checked.
        clock: Returns the current time in seconds.

    Raises:
        UserError: If the study cannot be run.
    """
    config, backend = config if isinstance(config, StudyConfig) else StudyConfig.load(config), backend or Backend()
    out = check_study_folder(out)
    inputs = None
    with plan_calls() as calls:
        inputs, _ = prepare(read_study(config, backend), cached_only=True)
    if inputs is None:
        return Forecast([], guessed=False, calls=calls)
    check_study_names(parse_requirements(require), inputs)
    store, graphs = JobStore(out), list[JobGraph]()

    def look_up(graph: JobGraph) -> dict[str, Outcome]:
        graphs.append(graph)
        return {key: store.outcome(job) for key, job in graph.jobs.items()}

    found, last = plan_jobs(inputs, look_up)
    parts = [*(f"search {number}" for number in range(1, len(graphs) + 1)), "study", "kept models"]
    graphs += [last, planned_models(last, config, out)]
    planned: dict[str, tuple[str, Job]] = {}
    for part, graph in zip(parts, graphs, strict=True):
        for key, job in graph.jobs.items():
            planned.setdefault(key, (part, job))
    left = {key: job for key, (_, job) in planned.items() if store.result(job) is None}
    durations = durations or Durations(store.finished())
    if timed:
        durations.time(left.values(), backend, progress=progress, clock=clock)
    seconds = dict(zip(left, durations.estimate_all(list(left.values()), by_cost=timed), strict=True))
    result = Forecast(_by_kind(planned, seconds), not found.complete)
    for key, job in left.items():
        if job.place.method in config.row_labels and (estimate := seconds[key]) is not None:
            result.rows[job.place.method] = result.rows.get(job.place.method, 0.0) + estimate[0]
    adapted = {job.place.method: job for job in left.values() if job.reads_budget}
    for method in config.methods:
        if method.label in adapted and (what := lookup(method.name).preparation):
            timed_itself = adapted[method.label].price_group in durations.pilots
            known = f"timed on at most {PILOT_DOCUMENTS:,} documents" if timed_itself else "not estimated"
            result.prepared[method.label] = f"{known} is that, before the first step, {what}"
    result.notes += [*filter(None, [note]), *durations.notes()]
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
