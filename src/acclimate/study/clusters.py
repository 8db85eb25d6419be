"""Workers of a study as Slurm jobs (with ``submitit``) or as tasks on a Ray cluster (with ``ray``).

The folder of the study and all files that the study names have to be on a file system that the machines share.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acclimate.base.errors import Stopped, UserError, first_line, stop_on_signals
from acclimate.base.registry import parse_number
from acclimate.study.workers import SIGNALLED, Handle, Launcher, LocalLauncher, last_line

SLURM_DEFAULTS = {"job_name": "acclimate", "time": 240, "gpus_per_node": 1, "cpus_per_task": 4, "signal_delay_s": 120}
"""Settings of Slurm jobs; the time is in minutes, and the delay is the time for a checkpoint before a job ends."""
RAY_DEFAULTS = {"num_cpus": 4, "max_retries": 0}


def launchers() -> dict[str, Callable[[Path, int | str, int | None, Mapping[str, Any] | None], Launcher]]:
    """Return what makes the launcher of each executor, from the folder of logs, workers, workers per GPU, settings."""
    return {"local": LocalLauncher.of, "slurm": slurm_launcher, "ray": ray_launcher}


def _missing(package: str, extra: str) -> UserError:
    return UserError(f"--executor {extra} needs the package '{package}': pip install 'acclimate[{extra}]'.")


def _check_count(workers: int | str, executor: str) -> int:
    if isinstance(workers, str):
        raise UserError(f"--workers {workers} is for this machine; with --executor {executor} give a number.")
    return workers


@dataclass(frozen=True)
class ClusterTask:
    """A task that reports its error as a result, so that a cluster does not take it for a crash.

    Attributes:
        task: The task.
        path: Where Python finds modules.
        folder: Working directory.
        is_requeued: Whether a signal that announces the end of the Slurm job saves a checkpoint and requeues it.
    """

    task: Callable[[], None]
    path: tuple[str, ...]
    folder: str
    is_requeued: bool = False

    @classmethod
    def of(cls, task: Callable[[], None]) -> ClusterTask:
        """Create one that runs where this process runs."""
        return cls(task, tuple(sys.path), os.getcwd())

    def __call__(self) -> tuple[int, str]:
        """Run the task; return exit code and error message."""
        sys.path[:] = list(dict.fromkeys([*self.path, *sys.path]))
        os.chdir(self.folder)
        warnings = (signal.SIGTERM, signal.SIGUSR2) if self.is_requeued else ()
        try:
            with stop_on_signals(*warnings):
                self.task()
        except UserError as error:
            return 2, str(error)
        except Stopped as stopped:
            if self.is_requeued and stopped.number == signal.SIGUSR2:
                os.kill(os.getpid(), signal.SIGUSR2)  # submitit requeues the job and ends this process
            return SIGNALLED + stopped.number, f"it was stopped by {stopped}"
        return 0, ""

    def checkpoint(self) -> Any:
        """Return what ``submitit`` runs when the job starts again: the same, since the study resumes by itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class SlurmLauncher:
    """Starts workers as jobs of an executor of ``submitit``."""

    size: int
    executor: Any

    def start(self, number: int, task: Callable[[], None]) -> Handle:
        """Submit a job that is a worker.

        Raises:
            UserError: If it is refused.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            return _SlurmWorker(self.executor.submit(replace(ClusterTask.of(task), is_requeued=True)))
        except (FailedJobError, FailedSubmissionError) as error:
            raise UserError(f"Slurm refuses the job: {last_line(str(error))} Change --executor-set.") from error

    def place(self, number: int) -> str:
        """Return where a worker runs, for messages."""
        return "Slurm"


@dataclass
class _SlurmWorker:
    job: Any

    def poll(self) -> int | None:
        if not self.job.done():
            return None
        return 1 if self.job.exception() else int(self.job.result()[0])

    def stop(self) -> None:
        self.job.cancel(check=False)

    kill = stop

    def error(self) -> str:
        error = self.job.exception()
        return last_line(str(error) if error else self.job.result()[1])


def slurm_launcher(
    folder: Path, workers: int | str, per_gpu: int | None, settings: Mapping[str, Any] | None
) -> SlurmLauncher:
    """Make a launcher of Slurm jobs, each with one GPU unless the settings say otherwise.

    Args:
        folder: Folder for logs.
        workers: Maximum number of jobs.
        per_gpu: None; each job has its own GPU.
        settings: Settings of ``submitit.SlurmExecutor``.

    Raises:
        UserError: If this is not a machine of a Slurm cluster, or a setting is unknown.
    """
    size = _check_count(workers, "slurm")
    if per_gpu is not None:
        raise UserError("--per-gpu is not for --executor slurm, where each worker has its own GPU; remove it.")
    try:
        import submitit
    except ImportError as error:
        raise _missing("submitit", "slurm") from error
    try:
        executor = submitit.SlurmExecutor(folder.absolute(), max_num_timeout=100)
        given = {name: parse_number(value) for name, value in (settings or {}).items()}
        executor.update_parameters(**{**SLURM_DEFAULTS, **given})
    except RuntimeError as error:
        raise UserError("There is no 'srun' here: run this on a machine of the Slurm cluster.") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"--executor-set: {first_line(error)}; see the options of 'sbatch'.") from error
    return SlurmLauncher(size, executor)


@dataclass(frozen=True)
class RayLauncher:
    """Starts workers as tasks of Ray, which places them and shows each its GPU."""

    size: int
    ray: Any
    options: Mapping[str, Any]

    def start(self, number: int, task: Callable[[], None]) -> Handle:
        """Start a worker as a task."""
        work = ClusterTask.of(task)
        return _RayWorker(self.ray, self.ray.remote(work.__class__.__call__).options(**self.options).remote(work))

    def place(self, number: int) -> str:
        """Return where a worker runs, for messages."""
        return "Ray"


@dataclass
class _RayWorker:
    ray: Any
    task: Any
    result: tuple[int, str] | None = None

    def poll(self) -> int | None:
        if self.result is None and self.ray.wait([self.task], timeout=0)[0]:
            try:
                self.result = self.ray.get(self.task)
            except Exception as error:  # of the task, or of Ray if its process has died
                self.result = 1, first_line(error)
        return self.result and self.result[0]

    def stop(self) -> None:
        with suppress(Exception):  # it has ended
            self.ray.cancel(self.task, force=False)

    def kill(self) -> None:
        with suppress(Exception):
            self.ray.cancel(self.task, force=True)

    def error(self) -> str:
        return last_line(self.result[1] if self.result else "")


def ray_launcher(
    folder: Path, workers: int | str, per_gpu: int | None, settings: Mapping[str, Any] | None
) -> RayLauncher:
    """Make a launcher of tasks on the Ray cluster that this machine belongs to, or that ``RAY_ADDRESS`` names.

    Args:
        folder: Folder for logs; Ray keeps its own.
        workers: Maximum number of tasks.
        per_gpu: Workers on each GPU; None for one.
        settings: Options of ``ray.remote``, such as ``num_gpus=0`` on a cluster without GPUs.

    Raises:
        UserError: If no cluster is found, or a setting is invalid.
    """
    size = _check_count(workers, "ray")
    try:
        import ray
    except ImportError as error:
        raise _missing("ray", "ray") from error
    remote: Any = ray.remote  # its types know no options of a task
    given = {name: parse_number(value) for name, value in (settings or {}).items()}
    options = {"num_gpus": 1 / (per_gpu or 1), **RAY_DEFAULTS, **given}
    try:
        if not ray.is_initialized():
            ray.init(address="auto", log_to_driver=False)
        remote(ClusterTask.__call__).options(**options)
    except ConnectionError as error:
        raise UserError(
            "No Ray cluster was found: run 'ray start --head' on this machine, or set RAY_ADDRESS."
        ) from error
    except (ValueError, TypeError) as error:
        raise UserError(f"--executor-set: {first_line(error)}") from error
    return RayLauncher(size, ray, options)
