"""Running the jobs of a graph and storing their results; several processes can share the folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from acclimate.base.device import imports_frozen, malloc_trim
from acclimate.base.errors import USER_CODE_ERRORS, Stopped, UserError, check_stop
from acclimate.base.files import MANIFEST_FILE, RECORD_FILE, is_intact, read_json, write_json
from acclimate.base.locks import Claim, Owner
from acclimate.base.progress import Progress
from acclimate.base.records import Record
from acclimate.base.waiting import Wait
from acclimate.study.graph import Shard, with_needs
from acclimate.study.job import FORMAT, Job, JobGraph, Outcome, RunContext
from acclimate.study.workers import MAX_JOB_DEATHS, Pool

log = logging.getLogger(__name__)

POLL = 2.0
"""Seconds between two checks of jobs that other processes are computing."""
WATCH = 1.0
"""Seconds between two checks of the workers of a study."""
LONGEST_ERROR = 500
"""Maximum characters of a stored error message."""


class _Stored(Record):
    """The form of the file of a job, as far as it is read; a file of another form counts as missing."""

    kind: str
    status: str
    seconds: Annotated[float, 0]
    place: dict[str, str | int]
    error: str | None = None
    result: dict[str, Any] | None = None


class JobStore:
    """Results of jobs, one file ``out/jobs/KEY.json`` per job, written atomically."""

    def __init__(self, out: Path) -> None:
        """Use the folder ``out``, which is created when the first result is stored."""
        self.out = Path(out)

    def result(self, job: Job) -> Record | None:
        """Return the result of a finished job, or None if it is missing, failed or unreadable."""
        record = self._read(self._path(job))
        if record is None or record.get("status") != "done":
            return None
        try:
            return job.result_type.from_dict(record["result"])
        except (KeyError, UserError):
            return None

    def seconds(self, job: Job) -> float:
        """Return the duration of a finished or failed job in seconds."""
        return float((self._read(self._path(job)) or {}).get("seconds", 0.0))

    def failure(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a failed job, with its ``error``, or None."""
        record = self._read(self._path(job))
        return record if record and record.get("status") == "failed" else None

    def outcome(self, job: Job) -> Outcome:
        """Return the stored outcome of a job: ``"reused"``, ``"failed"`` or ``"missing"``."""
        result = self.result(job)
        if result is not None:
            return Outcome(job, "reused", result)
        record = self.failure(job)
        if record is not None:
            return Outcome(job, "failed", error=str(record.get("error")))
        return Outcome(job, "missing", error="not computed yet")

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yield the records of all finished jobs, including those of earlier versions of the study."""
        for path in sorted((self.out / "jobs").glob("*.json")):
            record = self._read(path)
            if record and record.get("status") == "done":
                yield record

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return the records of all failed jobs, by key."""
        records = {path.stem: self._read(path) for path in (self.out / "jobs").glob("*.json")}
        return {key: record for key, record in records.items() if record and record.get("status") == "failed"}

    def claimed(self) -> set[str]:
        """Return the keys of jobs for which there is a claim, possibly of a process that has ended."""
        return {path.stem for path in (self.out / "jobs").glob("*.claim")}

    def claim(self, key: str) -> Claim:
        """Return a claim on a job, not yet taken.

        The claim file is in the folder of the results. Creating it makes a network file system refresh its listing of
        the folder, so that the holder of the claim sees a result that another process has just stored.
        """
        return Claim(self.out / "jobs" / f"{key}.claim")

    def remove_stale_claims(self, keys: Iterable[str]) -> None:
        """Remove the claims of processes that were killed between storing a result and releasing its claim."""
        for claim in map(self.claim, keys):
            if claim.path.exists() and claim.take():
                claim.release()

    def finish(self, job: Job, result: Record, seconds: float) -> None:
        """Store the result of a job and its duration in seconds."""
        self._write(job, {"status": "done", "seconds": round(seconds, 3), "result": result.to_dict()})

    def fail(self, job: Job, message: str, seconds: float) -> None:
        """Store the error message of a failed job; the next run tries the job again."""
        self._write(job, {"status": "failed", "seconds": round(seconds, 3), "error": message})

    def _path(self, job: Job) -> Path:
        return self.out / "jobs" / f"{job.key}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            record = read_json(path)
            _Stored.from_dict(record)
        except (OSError, ValueError, UserError):
            return None
        return record if record.get("format") == FORMAT else None

    def _write(self, job: Job, outcome: dict[str, Any]) -> None:
        head = {
            "format": FORMAT,
            "key": job.key,
            "kind": job.name,
            "description": job.description,
            "finished": datetime.now(UTC).isoformat(timespec="microseconds"),  # two failures differ
            "identity": job.identity,
            "place": {name: value for name, value in asdict(job.place).items() if value is not None},
        }
        write_json(self._path(job), {**head, **outcome})


class NothingToClaimError(Exception):
    """Other processes have claimed all unfinished jobs, so a worker can end."""


@dataclass
class Executor:
    """Runs the graphs of a study one after the other.

    Attributes:
        store: Stored results.
        context: Context that jobs run in.
        share: Shard to compute; None for all jobs.
        report_only: Compute nothing.
        pool: Workers that compute the jobs; None if this process does.
        is_worker: Whether to end where other processes have claimed all unfinished jobs.
        failures: Records of jobs that failed earlier and may be tried again, by key; None for those that have failed
            when a graph is executed.
        computed: Outcomes of the jobs that this executor ran, over all graphs, by key.
    """

    store: JobStore
    context: RunContext
    share: Shard | None = None
    report_only: bool = False
    pool: Pool | None = None
    is_worker: bool = False
    failures: dict[str, dict[str, Any]] | None = None
    computed: dict[str, Outcome] = field(default_factory=dict)

    def execute(self, graph: JobGraph) -> dict[str, Outcome]:
        """Compute the jobs of a graph, or the executor's share of them.

        Returns:
            The outcome of every job of the graph, by key, including jobs that other processes computed.

        Raises:
            NothingToClaimError: If this is a worker, and no job is left for it.
        """
        keys = [] if self.report_only else self.share.select(graph.jobs) if self.share else list(graph.jobs)
        with imports_frozen():
            found = _Run(self).run({key: graph.jobs[key] for key in with_needs(keys, graph.jobs)})
        # A job that an earlier graph computed is "reused" in a later one; keep the first outcome.
        self.computed |= {key: one for key, one in found.items() if one.state != "reused" or key not in self.computed}
        return {key: self.computed.get(key) or self.store.outcome(job) for key, job in graph.jobs.items()}

    def check_failures(self, ignored: Collection[str]) -> None:
        """Raise UserError if jobs failed.

        Args:
            ignored: Keys of jobs that may fail.
        """
        failed = [one for key, one in self.computed.items() if one.state == "failed" and key not in ignored]
        if failed:
            raise UserError(
                f"{len(failed)} of {len(self.computed)} jobs failed; the others are in '{self.store.out}'. First: "
                f"{failed[0].job.description}: {failed[0].error.rstrip('.')}. Fix it and run the same command again."
            )


class _Run:
    """One pass over the jobs of a graph. A job is claimed before it is computed, so no other process computes it."""

    def __init__(self, executor: Executor) -> None:
        self._store, self._context = executor.store, executor.context
        self._pool, self._is_worker, self._failures = executor.pool, executor.is_worker, executor.failures
        context = self._context
        self._since: dict[str, float] = {}
        self._unfinished: set[str] = set()
        self._bar = Progress("study", None, unit="jobs", enabled=context.progress, delay=0, estimated=False)
        self._claims: dict[str, Claim] = {}
        self._waiting_line = ""
        self._others = Wait("other processes of this study", "run the same command again", math.inf)
        self._outcomes: dict[str, Outcome] = {}
        self._models_needed: set[str] = set()
        self._failed_before: dict[str, dict[str, Any]] = {}

    def run(self, jobs: dict[str, Job]) -> dict[str, Outcome]:
        """Compute jobs in order, and wait for those of other processes. A job that fails is not retried in this pass.

        Args:
            jobs: Jobs by key; each comes after those that it needs.

        Returns:
            The outcome of each job, by key.
        """
        missing = [job for job in jobs.values() if self._store.result(job) is None]
        # A deleted model is recomputed only if a missing job reads it, or another model to recompute is made from it.
        self._models_needed = {needed.key for job in missing for needed in job.needed}
        self._models_needed |= {key for key, job in jobs.items() if job.keeps_model}
        for key, job in reversed(jobs.items()):
            if key in self._models_needed and not self._has_model(job):
                self._models_needed |= {needed.key for needed in job.needed}
        self._unfinished = {job.key for job in missing}
        self._failed_before = self._store.failures() if self._failures is None else self._failures
        todo = dict(jobs)
        self._bar.set_total(len(todo))
        with self._bar:
            while todo:
                before = len(todo)
                for key, job in jobs.items():
                    if key in todo and (outcome := self._try(job, todo)) is not None:
                        del todo[key]
                        self._outcomes[key] = outcome
                        self._bar.update(len(jobs) - len(todo))
                if todo and self._pool:
                    self._watch(todo, self._pool)
                elif len(todo) == before:
                    if self._is_worker and todo.keys() <= self._claims.keys():
                        raise NothingToClaimError
                    self._wait(todo)
        self._store.remove_stale_claims(jobs)
        return {key: self._outcomes[key] for key in jobs}

    def _try(self, job: Job, todo: dict[str, Job]) -> Outcome | None:
        """Return the outcome of a job, computed if necessary; None if it has to wait for another job or process."""
        if (known := self._known(job)) is not None:
            return known
        if any(needed.key in todo for needed in job.needed):
            return None
        if any(self._outcomes[needed.key].state in ("failed", "blocked") for needed in job.needed):
            return self._reported(Outcome(job, "blocked", error="the job that it needs failed"))
        if self._pool:
            return None
        claim = self._claims.setdefault(job.key, self._store.claim(job.key))
        if not claim.take():
            return None
        try:
            # Another process may have finished it between the check of the store and the claim.
            return self._known(job) or self._reported(self._compute(job))
        finally:
            claim.release()
            del self._claims[job.key]

    def _known(self, job: Job) -> Outcome | None:
        """Return the stored outcome, if any: a result, or a failure in another process during this pass."""
        result = self._store.result(job)
        if result is not None:
            remake = job.key in self._models_needed and not self._has_model(job)
            if remake:
                return None
            is_new = self._pool is not None and job.key in self._unfinished
            if not is_new:
                return Outcome(job, "reused", result)
            return self._reported(Outcome(job, "done", result, seconds=self._store.seconds(job)))
        record = self._store.failure(job)
        if record is None or record == self._failed_before.get(job.key):
            return None
        return self._reported(Outcome(job, "failed", error=str(record.get("error"))))

    def _has_model(self, job: Job) -> bool:
        folder = self._context.folder(job)
        manifests = [name for name in (MANIFEST_FILE, RECORD_FILE) if (folder / name).is_file()]
        try:
            return (folder / "config.json").is_file() and all(is_intact(folder, name, "") for name in manifests)
        except UserError:  # the job explains it when it runs
            return False

    def _compute(self, job: Job) -> Outcome:
        if job.shows_progress:
            self._bar.set_note(job.description)
            self._bar.pause()
        with nullcontext() if job.shows_progress else self._bar.job(job.description):
            outcome = self._run_job(job)
        malloc_trim()
        return outcome

    def _run_job(self, job: Job) -> Outcome:
        started = time.perf_counter()
        try:
            result = job.run(self._context)
        except UserError as error:
            return self._fail(job, str(error), time.perf_counter() - started)
        except Stopped as stopped:
            stopped.saved = stopped.saved or None  # what was not saved is one job, and the others are finished
            raise
        except USER_CODE_ERRORS as error:  # one failed job must not stop the others
            log.debug("job %s failed", job.key, exc_info=True)
            return self._fail(job, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        seconds = time.perf_counter() - started
        self._store.finish(job, result, seconds)
        return Outcome(job, "done", result, seconds=seconds)

    def _fail(self, job: Job, message: str, seconds: float) -> Outcome:
        stored = self._store.result(job)
        if stored is not None:  # this process lost its claim while suspended, and another one finished the job
            return Outcome(job, "reused", stored)
        line = " ".join(message.split())
        line = line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + "..."
        self._store.fail(job, line, seconds)
        return Outcome(job, "failed", error=line, seconds=seconds)

    def _reported(self, outcome: Outcome) -> Outcome:
        self._bar.print(outcome.line())
        return outcome

    def _watch(self, todo: dict[str, Job], pool: Pool) -> None:
        """See that workers run, show what each of them does, and sleep for :data:`WATCH` seconds."""
        owners: dict[str, Owner] = {}
        for key in self._store.claimed() & todo.keys():
            if (owner := self._store.claim(key).owner()) is not None:
                owners[key] = owner
        ready = [key for key, job in todo.items() if not any(needed.key in todo for needed in job.needed)]
        free = sum(self._is_free(todo[key], owners.get(key)) for key in ready)
        for key in pool.watch(owners, free, self._bar.print):
            if (claim := self._store.claim(key)).take():
                self._store.fail(todo[key], f"it ended {MAX_JOB_DEATHS} processes; see '{pool.folder}'", 0.0)
                claim.release()
        now = time.monotonic()
        self._since = {key: self._since.get(key, now) for key in owners}
        rows = [(*pool.label(owner), todo[key].description, now - self._since[key]) for key, owner in owners.items()]
        self._bar.set_rows(rows)
        check_stop()
        time.sleep(WATCH)

    def _is_free(self, job: Job, owner: Owner | None) -> bool:
        """Return whether a worker could claim a job now; the claim of a process that has ended is removed."""
        if owner is None and job.key not in self._claims:
            return True
        claim = self._claims.setdefault(job.key, self._store.claim(job.key))
        if claim.take():
            claim.release()
            del self._claims[job.key]
            return True
        return False

    def _wait(self, todo: dict[str, Job]) -> None:
        """Report which jobs are being waited for, if they changed, and sleep for :data:`POLL` seconds."""
        claimed = {key: claim for key, claim in self._claims.items() if key in todo}
        first = next(iter(claimed), next(iter(todo)))
        owner = claimed[first].owner() if first in claimed else None
        who = f" ({owner.place})" if owner else f" ({claimed[first].holder()})" if first in claimed else ""
        count = f"{len(todo)} job{'s' if len(todo) > 1 else ''}"
        line = f"… waiting for other processes: {count}, first {todo[first].description}{who}"
        if line != self._waiting_line:
            self._waiting_line = line
            self._bar.print(line)
        waits = [claim.watch("another process of this study") for claim in claimed.values()] or [self._others]
        waits[0].say = lambda _: None  # the line above says more
        waits[0].pause(POLL)
