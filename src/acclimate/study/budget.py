"""How long jobs take on this machine, and a token budget that fits a study into a given time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import UserError, first_line
from acclimate.base.progress import print_message
from acclimate.study.backend import Backend
from acclimate.study.changes import change_values
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import Executor, JobStore
from acclimate.study.graph import plan, read_study
from acclimate.study.job import Checkpoint, Job, Model, RunContext, Timed
from acclimate.study.jobs.adapt import AdaptJob
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
    """Run a job and return its result and duration, and the tokens of the corpus that it adapts to."""
    sizes = [0]

    def adapt(*args: Any, **given: Any) -> Any:
        result = context.backend.adapt(*args, **given)
        sizes[0] = result.rows.tokens
        return result

    began = clock()
    result = job.run(replace(context, backend=replace(context.backend, adapt=adapt)))
    return Timed(job, result, clock() - began, sizes[0])


@dataclass(frozen=True)
class _PilotContext(RunContext):
    """A context whose jobs read the models of a study and write elsewhere."""

    study: Path = Path()

    def path(self, model: Model) -> str:
        return model.path if isinstance(model, Checkpoint) else str(self.study / "models" / model.key)


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
    adaptations: dict[tuple[str | None, ...], list[AdaptJob]] = {}
    others: list[Job] = []
    for job in graph.jobs.values():
        if isinstance(job, AdaptJob) and not job.is_shared_base:
            adaptations.setdefault((job.place.model, job.place.method), []).append(job)
        elif store.result(job) is None:
            others.append(job)
    known = Durations(store.finished())
    fixed = sum((known.estimate(job) or (0.0, ""))[0] for job in others)
    overhead, seconds_per_token, corpus_tokens = 0.0, 0.0, 0.0
    for jobs in adaptations.values():
        speed, extra, size = time_adaptation(jobs[0], backend, out, progress=progress)
        overhead += len(jobs) * extra
        seconds_per_token += len(jobs) / speed
        corpus_tokens = max(corpus_tokens, size)
    fixed += overhead + time.monotonic() - began
    count = sum(map(len, adaptations.values()))
    return divide_time(minutes, fixed, len(others), seconds_per_token, count, corpus_tokens)


def divide_time(
    minutes: float, fixed: float, others: int, seconds_per_token: float, count: int, corpus_tokens: float
) -> tuple[int | None, str]:
    """Return the tokens per adaptation for which there is time, and a sentence that says how they were found.

    Args:
        minutes: The time for everything.
        fixed: Seconds of everything but reading tokens.
        others: Number of jobs that are not adaptations.
        seconds_per_token: Seconds in which each adaptation reads one token.
        count: Number of adaptations.
        corpus_tokens: Tokens of the largest corpus.

    Returns:
        The tokens, None if there is time for one pass over the corpus, and the sentence.

    Raises:
        UserError: If the time is too short.
    """
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
    job: AdaptJob, backend: Backend, out: Path, *, seconds: float = PILOT_SECONDS, progress: bool = False
) -> tuple[float, float, float]:
    """Adapt for a while, and return the tokens per second, the seconds besides training, and the tokens of the corpus.

    Args:
        job: The adaptation.
        backend: The expensive functions.
        out: Folder of the study, whose models it may start from.
        seconds: Training time.
        progress: Show progress bars.
    """
    options = {name: value for name, value in job.options.items() if name not in BUDGETS}
    pilot = replace(job, options={**options, "max_minutes": seconds / 60})
    with TemporaryDirectory(dir=out) as folder:
        timed = _run_timed(pilot, _PilotContext(backend, Path(folder), progress, study=out), time.monotonic)
    result = timed.result
    return result.tokens / max(result.seconds, 1e-3), max(0.0, timed.seconds - result.seconds), float(timed.tokens)
