"""Several processes that compute the jobs of one study, each on its device; the calling process only watches them.

Workers share the folder of the study like any processes that run the same command: each claims a job before it
computes it. A worker ends when every unfinished job is claimed by another one, and is started again when more jobs can
be claimed. One that dies is replaced; a job that takes down two workers has failed.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from acclimate.base.errors import GRACE_SECONDS, Stopped, UserError, first_line, stop_on_signals
from acclimate.base.files import write_json
from acclimate.base.locks import Owner, machine_name
from acclimate.base.shares import usable_cores
from acclimate.base.waiting import SILENT_SECONDS

LOGS = "workers"
"""Folder of the study with a log for each worker."""
CORES_PER_WORKER = 4
"""Cores of each worker with ``--workers auto`` on a machine without a GPU."""
MAX_JOB_DEATHS, MAX_EARLY_DEATHS = 2, 3
"""Workers that may die at one job, and workers that may die in a row before they claim a job."""
SIGNALLED = 128
"""Exit code of a worker that a signal has stopped, after it has saved a checkpoint, minus the number of the signal."""
HEARTBEAT_SECONDS, NAMED_SECONDS = 10.0, 120.0
"""Seconds between two signs of life of a worker, and seconds without one after which it is named.

Without one for :data:`acclimate.base.waiting.SILENT_SECONDS`, it is ended."""
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Handle(Protocol):
    """A worker that has been started."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; it is negative if a signal ended it."""

    def stop(self) -> None:
        """Ask it to save a checkpoint and end."""

    def kill(self) -> None:
        """End it at once."""

    def error(self) -> str:
        """Return the last line of its output."""


class Launcher(Protocol):
    """Starts workers."""

    @property
    def size(self) -> int:
        """Maximum number of workers."""

    def start(self, number: int, task: Callable[[], None]) -> Handle:
        """Start worker ``number``, from 0, which calls ``task``."""

    def place(self, number: int) -> str:
        """Return where a worker runs, for messages."""


@dataclass
class Pool:
    """The workers of a study.

    Attributes:
        launcher: Starts workers.
        folder: Folder of the workers' logs.
        task: What a worker does; it returns when no job is left that it can claim.
    """

    launcher: Launcher
    folder: Path
    task: Callable[[], None]
    _workers: dict[int, Handle] = field(default_factory=dict)
    _deaths: Counter[str] = field(default_factory=Counter)
    _early_deaths: int = 0
    _lives: dict[int, tuple[float, float]] = field(default_factory=dict)
    _named: set[int] = field(default_factory=set)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers that still run, and wait until they have saved a checkpoint."""
        for worker in self._workers.values():
            worker.stop()
        end = time.monotonic() + GRACE_SECONDS
        try:
            while self._workers and time.monotonic() < end:
                self._workers = {number: one for number, one in self._workers.items() if one.poll() is None}
                time.sleep(0.05)
        finally:
            for worker in self._workers.values():
                worker.kill()

    def watch(self, claimed: Mapping[str, Owner], ready: int, report: Callable[[str], None]) -> list[str]:
        """Replace workers that have died, and start more if there are jobs that none has claimed.

        Args:
            claimed: Owners of the claimed jobs, by key.
            ready: Number of jobs that can be claimed.
            report: Prints a line.

        Returns:
            Keys of jobs to give up, since they ended their workers.

        Raises:
            UserError: If workers cannot run.
        """
        given_up = []
        names = self._names()
        holders = {owner[:2]: key for key, owner in claimed.items()}
        busy = {number for number, name in names.items() if name in holders and number in self._workers}
        if busy:
            self._early_deaths = 0
        for number, worker in list(self._workers.items()):
            if (code := worker.poll()) is None:
                self._check_life(number, worker, report)
                continue
            del self._workers[number]
            busy.discard(number)
            if code == 0:
                continue
            if code - SIGNALLED in STOPPING:
                report(f"Worker {number + 1} on {self.launcher.place(number)} was stopped")
                continue
            reason = worker.error() if code > 0 else f"ended by {signal.Signals(-code).name}"
            key = holders.get(names.get(number, (0, "")))
            report(f"Worker {number + 1} on {self.launcher.place(number)} died: {reason}")
            if key is None:
                self._early_deaths += 1
                if code == 2 or self._early_deaths >= MAX_EARLY_DEATHS:
                    raise UserError(f"The workers of the study cannot run: {reason} The logs are in '{self.folder}'.")
                continue
            self._deaths[key] += 1
            if self._deaths[key] >= MAX_JOB_DEATHS:
                given_up.append(key)
        missing = min(self.launcher.size - len(self._workers), ready - (len(self._workers) - len(busy)))
        free = [number for number in range(self.launcher.size) if number not in self._workers]
        for number in free[: max(0, missing)]:
            (self.folder / f"{number + 1}.json").unlink(missing_ok=True)
            self._workers[number] = self.launcher.start(number, _Named(self.task, self.folder, number + 1))
        return given_up

    def _check_life(self, number: int, worker: Handle, report: Callable[[str], None]) -> None:
        """Report a worker that has begun and shows no sign of life, and end it after a while."""
        try:
            sign = (self.folder / f"{number + 1}.json").stat().st_mtime
        except OSError:  # it waits in the queue of a cluster
            return
        now = time.monotonic()  # the clock of another machine may differ
        if sign != self._lives.get(number, (0.0, 0.0))[0]:
            self._lives[number] = sign, now
            self._named.discard(number)
        silent = now - self._lives[number][1]
        name = f"Worker {number + 1} on {self.launcher.place(number)}"
        if silent > SILENT_SECONDS:
            report(f"{name} is ended, after {silent / 60:.0f} minutes without a sign of life")
            worker.kill()
            self._lives[number] = sign, now  # until it has died
        elif silent > NAMED_SECONDS and number not in self._named:
            self._named.add(number)
            limit = SILENT_SECONDS / 60
            report(f"{name} has shown no sign of life for {silent:.0f} s; it is ended after {limit:.0f} minutes")

    def label(self, owner: Owner) -> tuple[str, str]:
        """Return the name of the process that holds a claim, and where it runs."""
        found = next((number for number, name in self._names().items() if name == owner[:2]), None)
        return (owner.place, "") if found is None else (str(found + 1), self.launcher.place(found))

    def _names(self) -> dict[int, tuple[int, str]]:
        found = {}
        for number in range(self.launcher.size):
            with suppress(OSError, ValueError, KeyError):
                values = json.loads((self.folder / f"{number + 1}.json").read_text(encoding="utf-8"))
                found[number] = (int(values["pid"]), str(values["machine"]))
        return found


@dataclass(frozen=True)
class _Named:
    """A task that first writes which process it runs in."""

    task: Callable[[], None]
    folder: Path
    number: int

    def __call__(self) -> None:
        path = self.folder / f"{self.number}.json"
        write_json(path, {"pid": os.getpid(), "machine": machine_name()})
        ended = threading.Event()

        def show_life() -> None:
            while not ended.wait(HEARTBEAT_SECONDS):
                with suppress(OSError):
                    os.utime(path)

        threading.Thread(target=show_life, daemon=True).start()
        try:
            self.task()
        finally:
            ended.set()


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    from acclimate.base.device import default_device

    if default_device().type != "cuda":
        return []
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given or [str(number) for number in range(torch.cuda.device_count())]


@dataclass(frozen=True)
class LocalLauncher:
    """Starts workers on this machine.

    Attributes:
        folder: Folder for their logs.
        environments: Environment variables of each worker.
    """

    folder: Path
    environments: Sequence[Mapping[str, str]]

    @classmethod
    def of(
        cls, folder: Path, workers: int | str, per_gpu: int | None, settings: Mapping[str, Any] | None = None
    ) -> LocalLauncher:
        """Share out the GPUs and the cores of this machine.

        Args:
            folder: Folder for logs.
            workers: Number of workers, or :data:`acclimate.base.bounds.AUTO` for ``per_gpu`` on each GPU. Without
                a GPU that is one for every four cores.
            settings: None; workers on this machine have none.
            per_gpu: Workers on each GPU, each of which uses that part of its memory; None for as few as possible.

        Raises:
            UserError: If there is no GPU to put ``per_gpu`` workers on, or there are too few.
        """
        if settings:
            raise UserError("--executor-set is for --executor slurm and ray; remove it.")
        from acclimate.base.device import default_device

        gpus, cores = visible_gpus(), usable_cores()
        if per_gpu is not None and not gpus:
            raise UserError("This process sees no GPU: remove --per-gpu, or see what 'acclimate doctor' says.")
        automatic = len(gpus) * (per_gpu or 1) if gpus else max(1, cores // CORES_PER_WORKER)
        automatic = 1 if default_device().type == "mps" else automatic  # all workers would share one Apple GPU
        count = automatic if isinstance(workers, str) else workers
        if gpus and count > len(gpus) * (per_gpu or count):
            raise UserError(
                f"{count} workers do not fit on {len(gpus)} GPU{'s' * (len(gpus) > 1)} with {per_gpu} on each; raise "
                "--per-gpu or lower --workers."
            )
        from acclimate.models.batching import SHARING_VARIABLE

        threads = str(max(1, cores // count))
        places = [gpus[number % len(gpus)] if gpus else "" for number in range(count)]
        return cls(
            folder,
            [
                {
                    **({"CUDA_VISIBLE_DEVICES": place} if place else {}),
                    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads),
                    SHARING_VARIABLE: str(places.count(place)),
                }
                for place in places
            ],
        )

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.environments)

    def place(self, number: int) -> str:
        """Return where a worker runs, for messages."""
        gpu = self.environments[number].get("CUDA_VISIBLE_DEVICES")
        threads = self.environments[number]["OMP_NUM_THREADS"]
        return f"GPU {gpu}" if gpu else f"{threads} core{'s' * (threads != '1')}"

    def start(self, number: int, task: Callable[[], None]) -> Handle:
        """Start a worker; it ends with this process."""
        try:
            message = pickle.dumps(sys.path) + pickle.dumps(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"The study cannot be sent to other processes ({first_line(error)}); remove --workers."
            ) from error
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{number + 1}.log"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "acclimate.study.workers"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environments[number]},
                start_new_session=True,  # Ctrl-C ends this process, which ends its workers
            )
        write_json(self.folder / f"{number + 1}.json", {"pid": process.pid, "machine": machine_name()})
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has died already
            process.stdin.write(message)
            process.stdin.flush()
        return _LocalWorker(process, log)


@dataclass
class _LocalWorker:
    process: subprocess.Popen[bytes]
    log: Path

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def error(self) -> str:
        return last_line(self.log.read_text(encoding="utf-8", errors="replace"))


def last_line(text: str) -> str:
    """Return the last line of an output, as a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it wrote nothing"]
    return lines[-1].removeprefix("Error: ").rstrip(".") + "."


def serve(stream: IO[bytes]) -> int:
    """Run the task that a stream holds, and stop when the stream ends, since the process that wrote it has ended then.

    Returns:
        The exit code.
    """
    sys.path[:] = pickle.load(stream)  # where the writer of the stream finds its modules
    task = pickle.load(stream)

    def end_with_parent() -> None:
        while os.read(stream.fileno(), 1):  # not the stream itself, which Python cannot close while a thread reads it
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        with stop_on_signals():
            task()
    except UserError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except Stopped as stopped:
        sys.stderr.write(f"Stopped by {stopped}.\n")
        return SIGNALLED + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.stdin.buffer))
