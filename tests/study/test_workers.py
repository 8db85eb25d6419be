"""Workers of a study: each job is computed once, dead workers are replaced, and each has its share of the machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.models.batching import SHARING_VARIABLE, machine_memory
from acclimate.study import executor, workers
from acclimate.study.compare import compare
from acclimate.study.executor import JobStore
from acclimate.study.workers import LocalLauncher, Pool
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, study
from tests.study.sharing import Slow

pytestmark = pytest.mark.usefixtures("no_report")
FORK = multiprocessing.get_context("fork")


class Forked(LocalLauncher):
    """Starts workers without the time of the imports."""

    def start(self, number, task):
        self.folder.mkdir(parents=True, exist_ok=True)
        process = FORK.Process(target=self._run, args=(number, task), daemon=True)
        process.start()
        return ForkedWorker(process, self.folder / f"{number + 1}.log")

    def _run(self, number, task):
        executor.POLL = 0.05
        os.environ |= self.environments[number]
        sys.stdout = sys.stderr = (self.folder / f"{number + 1}.log").open("w", buffering=1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            task()
        except UserError as error:
            sys.stderr.write(f"Error: {error}\n")
            os._exit(2)


class ForkedWorker:
    def __init__(self, process, log):
        self.process, self.log = process, log

    def poll(self):
        return self.process.exitcode

    def stop(self):
        self.process.terminate()

    def kill(self):
        self.process.kill()

    def error(self):
        return workers.last_line(self.log.read_text())


class Deadly(Slow):
    """A backend that kills its process in some jobs."""

    deadly = ""

    def _called(self, kind, **arguments):
        super()._called(kind, **arguments)
        with self.journal.open("a") as file:
            file.write(f"device {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.environ['OMP_NUM_THREADS']}\n")
        once = self.journal.with_name("killed")
        if self.deadly and self.deadly == f"{kind} {arguments.get('seed', '')}".strip():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.deadly == f"stopped {kind}" and starts(self.journal).total() < 14:
            os._exit(128 + signal.SIGTERM)
        if self.deadly == f"once {kind}" and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.deadly == f"frozen {kind}" and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture
def machine(monkeypatch):
    """A machine with four GPUs and eight cores whose workers start and are watched quickly."""
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr("acclimate.study.clusters.LocalLauncher", Forked)
    monkeypatch.setattr(executor, "WATCH", 0.05)


def run(folder, out, world, **options):
    options = {"workers": "auto", "progress": False, **options}
    return compare(study(folder), out, backend=world.backend(), **options)


def starts(journal: Path) -> Counter[str]:
    """Return how often each job was started, from the journal."""
    lines = [line for line in journal.read_text().splitlines() if not line.startswith("device")]
    return Counter(line.split(maxsplit=1)[1] for line in lines)


def test_four_workers_compute_each_job_once(machine, folder, tmp_path):
    world = Deadly(tmp_path / "journal", 0.1)
    results = run(folder, tmp_path / "out", world)
    alone = compare(study(folder), tmp_path / "alone", progress=False, backend=World().backend())
    assert results["scores"] == alone["scores"] and results["losses"] == alone["losses"]
    assert set(starts(world.journal).values()) == {1} and sum(world.calls.values()) == 0
    assert results.jobs.done == results.jobs.total and not list((tmp_path / "out").glob("jobs/*.claim"))
    used = {line for line in world.journal.read_text().splitlines() if line.startswith("device")}
    assert used == {f"device {gpu} 2" for gpu in range(4)}


def test_a_killed_worker_is_replaced(machine, folder, tmp_path, capsys):
    world = Deadly(tmp_path / "journal", 0.02)
    world.deadly = "once adapt"
    results = run(folder, tmp_path / "out", world, progress=True, workers=2)
    assert results.jobs.done == results.jobs.total
    assert sorted(starts(world.journal).values())[-2:] == [1, 2]  # the interrupted job is computed again
    assert "on GPU 0 died: ended by SIGKILL" in (printed := capsys.readouterr().err) or "GPU 1 died" in printed


@pytest.mark.slow
def test_a_worker_without_a_sign_of_life_is_named_and_ended(machine, folder, tmp_path, capsys, monkeypatch):
    for name, seconds in (("HEARTBEAT_SECONDS", 0.05), ("NAMED_SECONDS", 1.0), ("SILENT_SECONDS", 3.0)):
        monkeypatch.setattr(workers, name, seconds)
    world = Deadly(tmp_path / "journal", 0.02)
    world.deadly = "frozen adapt"
    results = run(folder, tmp_path / "out", world, progress=True, workers=2)
    printed = capsys.readouterr().err
    assert results.jobs.done == results.jobs.total and "has shown no sign of life for" in printed
    assert printed.count("minutes without a sign of life") == 1 and "died: ended by SIGKILL" in printed


@pytest.mark.slow
def test_a_job_that_kills_its_workers_fails_and_the_others_are_computed(machine, folder, tmp_path):
    world = Deadly(tmp_path / "journal", 0.02)
    world.deadly = "finetune 1"
    with pytest.raises(UserError, match=r"3 of 17 jobs failed.*it ended 2 processes"):
        run(folder, tmp_path / "out", world)
    done = sum(1 for _ in JobStore(tmp_path / "out").finished())
    assert done == 14
    again = compare(study(folder), tmp_path / "out", backend=World().backend(), progress=False)
    assert (again.jobs.done, again.jobs.reused) == (3, 14)  # the next run tries them again


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_replaced_each_time(machine, folder, tmp_path):
    """As where jobs of a cluster are preempted: the job is not what ends them."""
    world = Deadly(tmp_path / "journal", 0.0)
    world.deadly = "stopped adapt"
    assert run(folder, tmp_path / "out", world, workers=2).jobs.left == 0
    assert max(starts(world.journal).values()) > workers.MAX_JOB_DEATHS


@pytest.mark.slow
def test_a_job_that_fails_is_tried_once(machine, folder, tmp_path):
    world = Deadly(tmp_path / "journal", 0.02)
    world.fail_on["adapt"] = UserError("no memory")
    for times in (1, 2):
        with pytest.raises(UserError, match=r"2 of 17 jobs failed.*no memory"):
            run(folder, tmp_path / "out", world, workers=3)
        assert {count for job, count in starts(world.journal).items() if job.startswith("adapt")} == {times}


def test_a_search_goes_through_its_stages(machine, folder, tmp_path):
    world = Deadly(tmp_path / "journal", 0.0)
    search = {"finetune": {"learning_rate": [1e-5, 1e-4]}, "seeds": 1}
    values = {**study(folder), "search": search}
    results = compare(values, tmp_path / "out", backend=world.backend(), workers=3, progress=False)
    alone = compare(values, tmp_path / "alone", backend=World().backend(), progress=False)
    assert results["scores"] == alone["scores"] and results["searches"] == alone["searches"]


def test_workers_that_cannot_run_end_the_study(machine, folder, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise UserError("the disk is gone")

    monkeypatch.setattr(sys.modules["acclimate.study.compare"], "compute_jobs", refuse)
    with pytest.raises(UserError, match=r"cannot run: the disk is gone\. The logs are in"):
        run(folder, tmp_path / "out", World())


def test_ctrl_c_ends_the_workers(machine, folder, tmp_path, monkeypatch):
    world = Slow(tmp_path / "journal", 0.02, endless="adapt")

    def press(*_):
        if world.journal.exists() and world.journal.read_text().count("adapt") == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(executor, "check_stop", press)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", world)
    pids = {int(line.split()[0]) for line in world.journal.read_text().splitlines() if line[0].isdigit()}
    assert len(pids) > 1 and not any(process.pid in pids for process in multiprocessing.active_children())
    monkeypatch.setattr(executor, "check_stop", lambda: None)
    world.endless = ""
    assert run(folder, tmp_path / "out", world).jobs.left == 0


def test_a_worker_is_a_process(tmp_path):
    launcher = LocalLauncher(tmp_path / "logs", [{"OMP_NUM_THREADS": "1"}])
    worker = launcher.start(0, partial(os.mkdir, tmp_path / "done"))
    assert worker.process.wait(100) == 0, worker.error()
    assert (tmp_path / "done").exists()


def test_a_worker_ends_with_its_parent(tmp_path):
    reading, writing = os.pipe()

    def work():
        os.close(writing)
        sys.stderr = (tmp_path / "log").open("w", buffering=1)
        os._exit(workers.serve(os.fdopen(reading, "rb")))

    worker = FORK.Process(target=work)
    worker.start()
    os.close(reading)
    os.write(writing, pickle.dumps(sys.path) + pickle.dumps(partial(time.sleep, 100)))
    worker.join(0.2)
    assert worker.is_alive()
    os.close(writing)  # as when this process is killed
    worker.join(30)
    assert worker.exitcode == workers.SIGNALLED + signal.SIGTERM
    assert (tmp_path / "log").read_text() == "Stopped by SIGTERM.\n"


def test_a_study_that_cannot_be_sent_to_another_process(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "visible_gpus", list)
    backend = World().backend(lm_loss=lambda *_, **__: None)
    with pytest.raises(UserError, match=r"cannot be sent to other processes .*; remove --workers"):
        compare(study(folder), tmp_path / "out", backend=backend, workers=2, progress=False)


@each(
    ("gpus", "workers_", "per_gpu", "places"),
    [
        ("0 1", "auto", None, ["0 4 1", "1 4 1"]),
        ("0 1", "auto", 2, ["0 2 2", "1 2 2", "0 2 2", "1 2 2"]),
        ("MIG-a 7", 3, None, ["MIG-a 2 2", "7 2 1", "MIG-a 2 2"]),
        ("", "auto", None, [" 4 2", " 4 2"]),
        ("", 16, None, [" 1 16"] * 16),
    ],
)
def test_gpus_threads_and_memory_are_shared_out(gpus, workers_, per_gpu, places, monkeypatch):
    monkeypatch.setattr(workers, "visible_gpus", gpus.split)
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    launcher = LocalLauncher.of(Path("logs"), workers_, per_gpu)
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", SHARING_VARIABLE)
    assert [" ".join(place.get(name, "") for name in names) for place in launcher.environments] == places


def test_processes_that_share_a_device_see_a_part_of_its_memory(monkeypatch):
    whole = machine_memory(torch.device("cpu"))
    monkeypatch.setenv(SHARING_VARIABLE, "4")
    assert machine_memory(torch.device("cpu")) == whole // 4


@each(
    ("options", "said"),
    [
        ({"workers": 9, "per_gpu": 2}, "9 workers do not fit on 4 GPUs with 2 on each"),
        ({"workers": None, "per_gpu": 2}, "--per-gpu: give the number of workers as well"),
        ({"workers": None, "executor": "slurm"}, "--executor: give the number of workers as well"),
        ({"workers": 2, "report_only": True}, "--report-only runs no jobs; remove --workers"),
        ({"workers": 2, "executor_settings": {"a": 1}}, "--executor-set is for --executor slurm and ray"),
        ({"workers": "auto", "executor": "slurm"}, "with --executor slurm give a number"),
        ({"workers": 0}, "auto or an integer from 1"),
        ({"workers": "many"}, "auto or an integer from 1"),
    ],
)
def test_options_that_do_not_fit_together(machine, folder, tmp_path, options, said):
    with pytest.raises(UserError, match=said):
        run(folder, tmp_path / "out", World(), **options)


def test_visible_gpus_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr("acclimate.base.device.default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert workers.visible_gpus() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8f2a")
    assert workers.visible_gpus() == ["5", "GPU-8f2a"]


def test_the_work_of_each_worker_is_shown(machine, folder, tmp_path):
    """On a terminal the bar is above a table of the workers."""
    from acclimate.base.locks import Owner
    from acclimate.base.progress import Progress

    job = of_kind(graph_of(study(folder)), "adapt")[0]
    launcher = LocalLauncher.of(tmp_path / "workers", 2, None)
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "2.json").write_text(json.dumps({"pid": 77, "machine": "here"}))
    pool = Pool(launcher, tmp_path / "workers", print)
    labels = [pool.label(Owner(77, "here", 0.0)), pool.label(Owner(78, "there?1", 0.0))]
    assert labels == [("2", "GPU 1"), ("pid 78 on there", "")]
    bar = Progress("study", 3, unit="jobs")
    bar.set_rows([(*labels[0], job.description, 75.0)])
    table = list(bar._bar.get_renderables())[-1]
    cells = [list(map(str, column.cells)) for column in table.columns]
    assert cells == [["2"], ["GPU 1"], [job.description], ["1:15 min"]]
