"""How long the jobs of a study take on this machine: dry runs, and a token budget that fits into a given time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from acclimate.adaptation.method import lookup
from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import UserError, first_line
from acclimate.base.progress import print_message
from acclimate.base.verbs import Next, given_words
from acclimate.study.backend import Backend
from acclimate.study.changes import change_values
from acclimate.study.compare import check_study_folder, prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import Executor, JobStore
from acclimate.study.graph import plan, read_study
from acclimate.study.inputs import Checkpoint
from acclimate.study.job import Job, JobGraph, Outcome, RunContext, Timed
from acclimate.study.keeping import planned_models
from acclimate.study.search import final_graph, run_search
from acclimate.study.settings import UNADAPTED

PILOT_SECONDS = 15.0
"""Training time of the adaptation that measures the speed of a method."""
RESERVE = 0.1
"""Share of the time that is kept for what was not measured, such as the report."""
FEWEST_TOKENS = 1_000
"""Smallest budget that is worth an adaptation."""
TIMING_SECONDS = 20.0
"""About how long a dry run times a machine, without loading models; half of it is adaptation."""
ALIKE = ("model", "method", "domain", "task", "text")
"""Fields of the place that a finished job shares with a job to be preferred for its estimate."""
FINISHED, TIMED, TYPICAL = "finished jobs", "this machine, timed", "typical ratio"
"""What an estimate is made from: finished jobs of the kind, pilots, or :attr:`acclimate.study.job.Job.cost`."""


class Durations:
    """Durations of jobs in seconds: of finished ones, or from pilots that ran on this machine."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._seconds: dict[tuple[Any, ...], list[float]] = {}
        self.pilots: dict[tuple[str, str | None], list[Timed]] = {}
        """The pilots that have run, by kind and model."""
        self.problems: dict[str, str] = {}
        """Why a kind could not be timed."""
        for record in records:
            kind, place = record["kind"], record["place"]
            for group in ((kind,), (kind, *(place.get(name) for name in ALIKE))):
                self._seconds.setdefault(group, []).append(float(record["seconds"]))

    def estimate(self, job: Job) -> tuple[float, str] | None:
        """Return the estimated seconds of a job, and what they are estimated from; None if nothing says it."""
        alike = self._seconds.get((job.name, *(getattr(job.place, name) for name in ALIKE)))
        if (known := alike or self._seconds.get((job.name,))) is not None:
            return float(np.mean(known)), FINISHED
        places = [place for place in self.pilots if place[0] == job.name]
        if not places:
            return None
        place = (job.name, job.place.model)
        return job.expected_seconds(self.pilots[place if place in self.pilots else places[0]]), TIMED

    def estimate_all(self, jobs: Sequence[Job], *, by_cost: bool = False) -> list[tuple[float, str] | None]:
        """Return :meth:`estimate` of each job; with ``by_cost``, unknown ones by their typical cost, if one is known.

        The reference is fine-tuning, or all that is known if none of it is.
        """
        found = [self.estimate(job) for job in jobs]
        known = [(job, one[0]) for job, one in zip(jobs, found, strict=True) if one is not None]
        known = [(job, seconds) for job, seconds in known if job.counts_as_score] or known
        if not by_cost or not known:
            return found
        unit = float(np.mean([seconds / job.cost for job, seconds in known]))
        return [one or (unit * job.cost, TYPICAL) for job, one in zip(jobs, found, strict=True)]

    def time(
        self,
        jobs: Iterable[Job],
        backend: Backend,
        seconds: float,
        *,
        progress: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Run pilots of the kinds of jobs of which none has finished: one for each base model.

        A pilot that fails is left out, with the reason in :attr:`problems`.

        Args:
            jobs: The jobs to estimate.
            backend: The expensive functions.
            seconds: About how long all pilots take, without loading.
            progress: Say that they run.
            clock: Returns the current time in seconds.
        """
        wanted: dict[tuple[str, str | None], Job] = {}
        for job in jobs:
            if (job.name,) not in self._seconds and type(job).pilots is not Job.pilots:
                wanted.setdefault((job.name, job.place.model), job)
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in wanted))
        print_message(f"Timing {kinds} on this machine, for about {seconds:.0f} s ...", progress and bool(wanted))
        with TemporaryDirectory(prefix="acclimate-timing-") as folder:
            context = RunContext(backend, Path(folder), False)
            for place, job in wanted.items():
                try:
                    pilots = job.pilots(_base_model(job), seconds / 2 / len({model for _, model in wanted}))
                    self.pilots[place] = [_run_timed(pilot, context, clock) for pilot in pilots]
                except (UserError, RuntimeError, MemoryError) as error:
                    self.problems[job.name] = first_line(error)


def _base_model(job: Job) -> Checkpoint:
    """Return the checkpoint that the chain of models behind a job starts from."""
    root = job.chain[-1]
    return next(value for entry in fields(root) if isinstance(value := getattr(root, entry.name), Checkpoint))


def _run_timed(job: Job, context: RunContext, clock: Callable[[], float]) -> Timed:
    began = clock()
    result = job.run(context)
    return Timed(job, result, clock() - began)


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

    def show(self) -> Iterator[Any]:
        """Yield the jobs by kind as a table, the estimated time, and the command that runs them."""
        from rich.table import Table

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
            yield f"{label}: not estimated is that, before the first step, {what}."
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
    parts = [*(f"search {number}" for number in range(1, len(graphs) + 1)), "study", "kept models"]
    graphs.append(final_graph(inputs, found))
    graphs.append(planned_models(graphs[-1], config, out))
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
    adapted = {job.place.method for job in left.values() if job.reads_budget}
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


class Price(NamedTuple):
    """What an adaptation takes.

    Attributes:
        overhead: Seconds besides reading tokens.
        per_token: Seconds in which it reads one token.
        corpus_tokens: Tokens of its corpus.
    """

    overhead: float
    per_token: float
    corpus_tokens: float


def _describe_budget(
    minutes: float,
    left: Mapping[str, Job],
    seconds: Mapping[str, tuple[float, str] | None],
    durations: Durations,
) -> str:
    """Return a sentence on the tokens that each adaptation could read in a time for the whole study."""
    prices, fixed = (
        list[Price](),
        [(seconds[key] or (0.0, ""))[0] for key, job in left.items() if not job.reads_budget],
    )
    for job in (job for job in left.values() if job.reads_budget):
        pilot = durations.pilots.get((job.name, job.place.model))
        if pilot is None:
            return "No adaptation could be timed, so --minutes says nothing here."
        loading, more = (job.limited(tokens=tokens).expected_seconds(pilot) for tokens in (0, FEWEST_TOKENS))
        prices.append(Price(loading, (more - loading) / FEWEST_TOKENS, job.corpus_tokens(pilot[0])))
    try:
        return _divide_time(minutes, sum(fixed), len(fixed), prices)[1]
    except UserError as error:  # the estimates are of use nevertheless
        return str(error)


def fit_budget(
    study: Mapping[str, Any], out: str | Path, minutes: float, *, progress: bool = True, backend: Backend | None = None
) -> tuple[int | None, str]:
    """Return the tokens per adaptation with which a study takes about ``minutes``.

    The base model is measured and fine-tuned with one seed, as the study does anyway, and settings are searched; the
    results are kept in ``out``.
    Each method then adapts each model for :data:`PILOT_SECONDS`. What is left of the time after all fine-tunings and
    measurements is divided among the adaptations.

    Args:
        study: The study, as plain values with absolute paths and without a budget.
        out: Folder of the study.
        minutes: The time, for one process on this machine.
        progress: Show progress bars.
        backend: The expensive functions; by default those of this package.

    Returns:
        The tokens, None if there is time for one pass over the corpus, and a sentence that says how they were found.

    Raises:
        UserError: If the time is too short, the study has a budget already, or it cannot be run.
    """
    if any(name in (study.get("adapt") or {}) for name in BUDGETS):
        raise UserError(f"--minutes sets the budget of the adaptations: remove it, or {', '.join(BUDGETS)}.")
    began, out, backend = time.monotonic(), Path(out), backend or Backend()
    store, context = JobStore(out), RunContext(backend, out, progress)
    first = change_values(study, {"seeds": 1, "methods": [UNADAPTED]})
    executor = Executor(store, context, None, False)
    inputs = prepare(read_study(StudyConfig.of(study), backend), progress=progress)[0]
    search = run_search(inputs, executor.execute)
    executor.execute(plan(prepare(read_study(StudyConfig.of(first), backend))[0], search.choices or None))
    executor.check_failures(search.ignored)
    graph = final_graph(inputs, search)
    rows: dict[tuple[str | None, ...], list[Job]] = {}
    for job in graph.jobs.values():
        if job.reads_budget:
            rows.setdefault((job.place.model, job.place.method), []).append(job)
    timed = [(time_adaptation(jobs[0], backend, out, progress=progress), len(jobs)) for jobs in rows.values()]
    prices = [price for price, count in timed for _ in range(count)]
    known = Durations(store.finished())
    others = [job for job in graph.jobs.values() if not job.reads_budget and store.result(job) is None]
    fixed = sum((known.estimate(job) or (0.0, ""))[0] for job in others) + time.monotonic() - began
    return _divide_time(minutes, fixed, len(others), prices)


def _divide_time(minutes: float, fixed: float, others: int, prices: Sequence[Price]) -> tuple[int | None, str]:
    """Return the tokens per adaptation for which there is time, and a sentence that says how they were found.

    Args:
        minutes: The time for everything.
        fixed: Seconds of the other jobs.
        others: Number of jobs that are not adaptations.
        prices: The price of each adaptation.

    Returns:
        The tokens, None if there is time for one pass over the corpus, and the sentence.
    """
    fixed, count = fixed + sum(price.overhead for price in prices), len(prices)
    seconds_per_token = sum(price.per_token for price in prices)
    corpus_tokens = max((price.corpus_tokens for price in prices), default=0.0)
    left = 60 * minutes * (1 - RESERVE) - fixed
    tokens = left / seconds_per_token if seconds_per_token else math.inf
    if tokens < FEWEST_TOKENS:
        needed = (fixed + FEWEST_TOKENS * seconds_per_token) / 60 / (1 - RESERVE)
        raise UserError(
            f"{minutes:g} minutes are too short: with {others} fine-tunings and measurements, this machine needs "
            f"more than {math.ceil(needed)} minutes. Give more --minutes, or fewer --seeds, --methods or --task."
        )
    timing = f"Everything but reading text takes about {fixed / 60:.1f} minutes on this machine"
    if count and seconds_per_token:
        timing += f", and {count} adaptations read {count / seconds_per_token:,.0f} tokens per second"
    if tokens >= corpus_tokens:
        return None, f"{minutes:g} minutes are enough for one pass over the corpus per adaptation. {timing}."
    unit = 10 ** max(0, int(math.log10(tokens)) - 1)
    kept = int(tokens // unit * unit)  # two digits
    return kept, (
        f"To fit into {minutes:g} minutes, an adaptation reads {kept:,} tokens, {kept / corpus_tokens:.0%} of the "
        f"corpus. {timing}."
    )


def time_adaptation(
    job: Job, backend: Backend, out: Path, *, seconds: float = PILOT_SECONDS, progress: bool = False
) -> Price:
    """Adapt for a while, and return the price of the adaptation.

    Args:
        job: The adaptation.
        backend: The expensive functions.
        out: Folder of the study, whose models it may start from.
        seconds: Training time.
        progress: Show progress bars.
    """
    with TemporaryDirectory(dir=out) as folder:
        context = RunContext(backend, Path(folder), progress, models=out)
        timed = _run_timed(job.limited(max_minutes=seconds / 60), context, time.monotonic)
    trained, tokens = max(timed.result.seconds, 1e-3), max(timed.result.tokens, 1e-9)
    return Price(max(0.0, timed.seconds - timed.result.seconds), trained / tokens, timed.result.corpus_tokens)
