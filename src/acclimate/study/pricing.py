"""How long jobs take on this machine: durations of finished jobs, and small jobs that are timed for all others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from acclimate.base.errors import OutOfTimeError, Stopped, UserError, first_line, time_limit
from acclimate.base.progress import print_message
from acclimate.study.backend import Backend
from acclimate.study.inputs import Checkpoint
from acclimate.study.job import Job, RunContext, Timed
from acclimate.study.jobs.adapt import AdaptJob

PILOT_SECONDS = 10.0
"""Seconds that each kind of job is timed, without loading; less where there is little time for all."""
TIMING_SHARE = 0.1
"""Maximum share of the time for everything that timing takes."""
ALIKE = ("model", "method", "domain", "task", "text")
"""Fields of the place that a finished job shares with a job to be preferred for its estimate."""
FINISHED, TIMED, TYPICAL = "finished jobs", "this machine, timed", "typical ratio"
"""What an estimate is made from: finished jobs of the kind, pilots, or :attr:`acclimate.study.job.Job.cost`."""
READ_BEFORE = 0.1
"""Time of a job whose texts another job has read with the same model, relative to that one."""


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


class Durations:
    """Durations of jobs in seconds: of finished ones, or from pilots that ran on this machine."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seconds: dict[tuple[Any, ...], list[float]] = {}
        self.pilots: dict[tuple[str | None, ...], list[Timed]] = {}
        """The pilots that have run, by price group."""
        self.problems: dict[tuple[str | None, ...], BaseException] = {}
        """Why a group could not be timed; :class:`acclimate.base.errors.OutOfTimeError` if there was no time."""
        self.spent = 0.0
        """Seconds that the timing took."""
        for record in records:
            kind, place = record["kind"], record["place"]
            for group in ((kind,), (kind, *(place.get(name) for name in ALIKE))):
                self._seconds.setdefault(group, []).append(float(record["seconds"]))

    def estimate(self, job: Job) -> tuple[float, str] | None:
        """Return the estimated seconds of a job, and what they are estimated from; None if nothing says it."""
        alike = self._seconds.get((job.name, *(getattr(job.place, name) for name in ALIKE)))
        if (known := alike or self._seconds.get((job.name,))) is not None:
            return float(np.mean(known)), FINISHED
        pilots = self.find_pilots(job)
        return (job.expected_seconds(pilots), TIMED) if pilots else None

    def find_pilots(self, job: Job) -> list[Timed]:
        """Return the pilots of a job, or of the job that is most like it; none if its kind was not timed."""
        own = job.price_group
        near = [group for group in self.pilots if group[0] == own[0]]
        return self.pilots[max(near, key=lambda group: (group == own, group[:2] == own[:2]))] if near else []

    def estimate_all(self, jobs: Sequence[Job], *, by_cost: bool = False) -> list[tuple[float, str] | None]:
        """Return :meth:`estimate` of each job; with ``by_cost``, unknown ones by their typical cost, if one is known.

        The reference is fine-tuning, or all that is known if none of it is.
        """
        found, read = list[tuple[float, str] | None](), set[str]()
        for job in jobs:
            estimate, states = self.estimate(job), job.states
            if estimate and estimate[1] == TIMED and states is not None:
                estimate = (estimate[0] * (READ_BEFORE if states in read else 1.0), TIMED)
                read.add(states)
            found.append(estimate)
        known = [(job, one[0]) for job, one in zip(jobs, found, strict=True) if one is not None]
        known = [(job, seconds) for job, seconds in known if job.counts_as_score] or known
        if not by_cost or not known:
            return found
        unit = float(np.mean([seconds / job.cost for job, seconds in known]))
        return [one or (unit * job.cost, TYPICAL) for job, one in zip(jobs, found, strict=True)]

    def check(self, jobs: Iterable[Job]) -> None:
        """Check that every kind of job that can be timed was.

        Raises:
            UserError: If one was not, as when there was no time; it says why.
        """
        for job in jobs:
            if type(job).next_pilot is not Job.next_pilot and not self.find_pilots(job):
                error = self.problems.get(job.price_group) or UserError("nothing was timed")
                more = "; give more --minutes" * isinstance(error, OutOfTimeError)
                raise UserError(
                    f"Jobs of the kind {job.name} could not be timed: {first_line(error).rstrip('.')}{more}."
                )

    def notes(self) -> list[str]:
        """Return a sentence on each group that could not be timed, and is estimated from others."""
        return [
            f"{' · '.join(filter(None, group[:3]))} could not be timed: {first_line(error)}"
            for group, error in self.problems.items()
        ]

    def total(self, jobs: Sequence[Job]) -> float:
        """Return the estimated seconds of jobs; those of kinds that cannot be timed by their typical cost."""
        return sum(one[0] for one in self.estimate_all(jobs, by_cost=True) if one)

    def price(self, job: AdaptJob) -> Price:
        """Return the price of an adaptation.

        Raises:
            UserError: If no adaptation could be timed.
        """
        if not (pilots := self.find_pilots(job)):
            why = next(map(first_line, self.problems.values()), "none was planned")
            raise UserError(f"No adaptation could be timed: {why.rstrip('.')}.")
        overhead, more = (job.limited(tokens=tokens).expected_seconds(pilots) for tokens in (0, 1_000))
        return Price(overhead, (more - overhead) / 1_000, job.corpus_tokens(pilots[0]))

    def time(
        self,
        jobs: Iterable[Job],
        backend: Backend,
        minutes: float | None = None,
        *,
        progress: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Run pilots of the jobs of which none has finished: of each kind, model, task and method.

        A pilot that fails is left out, with the reason in :attr:`problems`.

        Args:
            jobs: The jobs to estimate.
            backend: The expensive functions.
            minutes: Time for everything, of which timing takes a tenth at most; None for no limit.
            progress: Print a line on each.
            clock: Returns the current time in seconds.
        """
        wanted: dict[tuple[str | None, ...], Job] = {}
        for job in sorted(jobs, key=lambda job: (-job.cost, job.relative_cost)):
            if (job.name,) not in self._seconds and type(job).next_pilot is not Job.next_pilot:
                for one in (job.plain, job) if isinstance(job, AdaptJob) else (job,):
                    wanted.setdefault(one.price_group, one)
        wanted = {group: job for group, job in wanted.items() if group not in self.pilots}
        began, limit = clock(), math.inf if minutes is None else 60 * minutes * TIMING_SHARE
        seconds = min(PILOT_SECONDS, limit / 2 / max(1, len(wanted)))
        with TemporaryDirectory(prefix="acclimate-timing-") as folder, _quiet():
            for number, (group, job) in enumerate(wanted.items(), 1):
                context = RunContext(backend, Path(folder) / str(number), False)
                what = " · ".join(filter(None, (job.name, *(group[1:3]))))
                print_message(f"Timing {what} on this machine ({number} of {len(wanted)}) ...", progress)
                left = limit - (clock() - began)
                try:
                    if left <= 0:
                        raise OutOfTimeError("there was no time left to time it")
                    with time_limit(left):
                        self._time_one(job, context, seconds, clock)
                except (UserError, RuntimeError, MemoryError) as error:
                    self.problems[group] = error
                except Stopped as stopped:
                    stopped.saved = None
                    raise
        self.spent += clock() - began

    def _time_one(self, job: Job, context: RunContext, seconds: float, clock: Callable[[], float]) -> None:
        model, timed = _base_model(job), list[Timed]()
        while (pilot := job.next_pilot(model, timed, seconds)) is not None:
            began = clock()
            result = pilot.run(context)
            timed.append(Timed(pilot, result, clock() - began))
            self.pilots[job.price_group] = timed


def _base_model(job: Job) -> Checkpoint:
    """Return the checkpoint that the chain of models behind a job starts from."""
    root = job.chain[-1]
    return next(value for entry in fields(root) if isinstance(value := getattr(root, entry.name), Checkpoint))


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context without warnings: what a pilot has learned in a few steps means nothing."""
    log = logging.getLogger("acclimate")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
