"""Workers of a study as jobs of ``submitit``, on its local executor, and as tasks of a local Ray cluster."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from acclimate.base.errors import Stopped, UserError, check_stop, stop_on_signals
from acclimate.study import executor
from acclimate.study.clusters import ClusterTask, RayLauncher, SlurmLauncher, launchers
from acclimate.study.compare import compare, compute_jobs
from acclimate.study.executor import JobStore
from tests.cases import each
from tests.study.fakes import World, study
from tests.study.sharing import Slow
from tests.study.test_workers import starts

pytestmark = pytest.mark.usefixtures("no_report")


def pid_of(kind, journal):
    """Return the process that has started a job of a kind, or None."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return next((int(line.split()[0]) for line in lines if f" {kind} " in line), None)


class Stoppable(Slow):
    """A backend whose first adaptation takes long, and ends as a training does that saves a checkpoint."""

    def _called(self, kind, **arguments):
        super()._called(kind, **arguments)
        saved = self.journal.with_name("checkpoint")
        if kind == "adapt" and not saved.exists():
            try:
                while True:
                    time.sleep(0.05)
                    check_stop()
            except Stopped:
                saved.touch()
                raise


@pytest.mark.slow
def test_a_preempted_slurm_job_is_requeued(folder, tmp_path, monkeypatch):
    """The signal before the end of a job saves a checkpoint; the same job then goes on, and no job is left."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(executor, "WATCH", 0.1)
    local = submitit.LocalExecutor(tmp_path / "workers", max_num_timeout=100)
    jobs, submit = [], local.submit
    monkeypatch.setattr(local, "submit", lambda task: jobs.append(submit(task)) or jobs[-1])
    monkeypatch.setattr("acclimate.study.clusters.slurm_launcher", lambda *_: SlurmLauncher(1, local))
    world = Stoppable(tmp_path / "journal", 0.0)

    def preempt(*_):
        if not preempted and (pid := pid_of("adapt", world.journal)):
            preempted.append(os.kill(pid, signal.SIGUSR2))

    preempted = []
    monkeypatch.setattr(executor, "check_stop", preempt)
    options = {"workers": 1, "executor": "slurm", "progress": False}
    results = compare(study(folder), tmp_path / "out", backend=world.backend(), **options)
    assert results.jobs.done == results.jobs.total and len(jobs) == 1
    assert preempted and (tmp_path / "checkpoint").exists() and sorted(starts(world.journal).values())[-2:] == [1, 2]


def test_a_study_changes_its_executor_half_way(folder, tmp_path):
    """What workers on a cluster have computed is reused here."""
    world = World()
    world.die_after = 6
    task = ClusterTask.of(partial(compute_jobs, (study(folder),), tmp_path / "out", world.backend(), None, {}, []))
    with pytest.raises(KeyboardInterrupt):
        pickle.loads(pickle.dumps(task))()
    found = sum(1 for _ in JobStore(tmp_path / "out").finished())
    results = compare(study(folder), tmp_path / "out", progress=False, backend=World().backend())
    assert 0 < found == results.jobs.reused < results.jobs.total


def test_errors_of_a_task_are_results():
    def fail():
        raise UserError("no disk")

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)
        check_stop()

    assert ClusterTask.of(fail)() == (2, "no disk")
    assert ClusterTask.of(stop)() == (143, "it was stopped by SIGTERM")
    with stop_on_signals(signal.SIGUSR2), pytest.raises(Stopped, match="SIGUSR2"):
        os.kill(os.getpid(), signal.SIGUSR2)
        check_stop()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


@each(
    ("name", "per_gpu", "settings", "said"),
    [
        ("slurm", 2, None, "--per-gpu is not for --executor slurm"),
        ("slurm", None, None, "no 'srun' here"),
        ("slurm", None, {"partitoin": "gpu"}, "partitoin"),
    ],
)
def test_settings_that_slurm_does_not_have(name, per_gpu, settings, said, tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    if settings:
        monkeypatch.setattr(submitit.SlurmExecutor, "affinity", lambda *_: 2)
    with pytest.raises(UserError, match=said):
        launchers()[name](tmp_path, 2, per_gpu, settings)


def test_slurm_jobs_have_a_gpu_and_the_settings_of_the_user(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", lambda *_: 2)
    launcher = launchers()["slurm"](tmp_path, 3, None, {"partition": "gpu", "time": "90"})
    script = launcher.executor._make_submission_file_text("run", "x")
    wanted = ("--partition=gpu", "--time=90", "--gpus-per-node=1", "--signal=USR2@120", "--job-name=acclimate")
    assert launcher.size == 3 and all(setting in script for setting in wanted), script


@each(("extra", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_extra_is_named(extra, package, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UserError, match=rf"needs the package '{package}': pip install 'acclimate\[{extra}\]'"):
        launchers()[extra](tmp_path, 2, None, None)


@pytest.mark.slow
def test_a_killed_task_of_ray_is_replaced(folder, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(executor, "WATCH", 0.1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    launcher = RayLauncher(2, ray, {"num_cpus": 1, "num_gpus": 0, "max_retries": 0})
    monkeypatch.setattr("acclimate.study.clusters.ray_launcher", lambda *_: launcher)
    world = Slow(tmp_path / "journal", 0.1)
    killed = []

    def kill(*_):
        if not killed and (pid := pid_of("adapt", world.journal)):
            killed.append(os.kill(pid, signal.SIGKILL))

    monkeypatch.setattr(executor, "check_stop", kill)
    options = {"workers": 2, "executor": "ray", "progress": False}
    try:
        results = compare(study(folder), tmp_path / "out", backend=world.backend(), **options)
    finally:
        ray.shutdown()
    assert killed and results.jobs.done == results.jobs.total
    assert sum(starts(world.journal).values()) <= results.jobs.total + 1


@pytest.mark.slow
def test_a_study_survives_the_loss_of_a_node(folder, tmp_path, monkeypatch):
    """With its job, which another worker starts again; the worker that replaces the lost one waits for a node."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(executor, "WATCH", 0.1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    world, lost = Slow(tmp_path / "journal", 0.1), []

    def lose(*_):
        if not lost and (pid := pid_of("adapt", world.journal)):
            lost.append(pid)
            raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            node = next(node for node in nodes if raylet in {one.process.pid for one in started(node)})
            cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(executor, "check_stop", lose)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        launcher = RayLauncher(2, ray, {"num_cpus": 1, "num_gpus": 0, "max_retries": 0})
        monkeypatch.setattr("acclimate.study.clusters.ray_launcher", lambda *_: launcher)
        options = {"workers": 2, "executor": "ray", "progress": False}
        results = compare(study(folder), tmp_path / "out", backend=world.backend(), **options)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert lost and results.jobs.done == results.jobs.total
    assert sum(starts(world.journal).values()) <= results.jobs.total + 1


def started(node):
    """Return the processes that Ray has started on an emulated node."""
    return [process for found in node.all_processes.values() for process in found]


@pytest.mark.slow
def test_a_killed_slurm_job_is_replaced(folder, tmp_path, monkeypatch):
    """A worker that dies without a signal to save, as with its node; its job is started again by another."""
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(executor, "WATCH", 0.1)
    local = submitit.LocalExecutor(tmp_path / "workers", max_num_timeout=100)
    monkeypatch.setattr("acclimate.study.clusters.slurm_launcher", lambda *_: SlurmLauncher(2, local))
    world, killed = Slow(tmp_path / "journal", 0.1), []

    def kill(*_):
        if not killed and (pid := pid_of("adapt", world.journal)):
            killed.append(os.kill(pid, signal.SIGKILL))

    monkeypatch.setattr(executor, "check_stop", kill)
    options = {"workers": 2, "executor": "slurm", "progress": False}
    results = compare(study(folder), tmp_path / "out", backend=world.backend(), **options)
    assert killed and results.jobs.done == results.jobs.total
    assert sum(starts(world.journal).values()) <= results.jobs.total + 1
