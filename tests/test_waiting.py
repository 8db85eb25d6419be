"""Every wait for another process is reported, ends by a signal, and has a limit."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from acclimate.base import waiting
from acclimate.base.errors import Stopped, UserError, stop_on_signals
from acclimate.base.locks import Claim
from acclimate.engine import distributed
from acclimate.engine.distributed import join_process_group
from acclimate.labs.auto.confirming import _lock
from acclimate.study.executor import _Run
from acclimate.tasks.training_cache import cache_lock
from tests.cases import SOURCES, each

SOURCE = Path(__file__).resolve().parents[1] / "src" / "acclimate"
FORK = multiprocessing.get_context("fork")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_alone(folder: Path, rank: int) -> None:
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    join_process_group()


def sum_with_a_missing_process(folder: Path) -> None:
    """The other process has connected, and takes part in nothing."""
    port = free_port()
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    rank = int(os.fork() == 0)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    group = join_process_group()
    if rank:
        time.sleep(8)
        os._exit(0)
    distributed.SLOW_SECONDS, distributed.TIMEOUT = 0.1, timedelta(seconds=waiting.SILENT_SECONDS)
    group.add_numbers([1])


def wait_in_cache(folder: Path) -> None:
    with cache_lock(folder / "entry"):
        pass


def wait_in_study(folder: Path) -> None:
    claim = Claim(folder / ".entry.claim")
    one = SimpleNamespace(_claims={"a": claim}, _waiting_line="", _bar=SimpleNamespace(print=print_line), _others=None)
    while True:
        _Run._wait(one, {"a": SimpleNamespace(description="a job")})


def print_line(line: str) -> None:
    sys.stderr.write(line + "\n")


WAITS = {
    "the first process of a run": (lambda folder: start_alone(folder, 0), "WORLD_SIZE=2"),
    "another process of a run": (lambda folder: start_alone(folder, 1), "unset WORLD_SIZE to run alone"),
    "an operation of all processes": (sum_with_a_missing_process, "the other processes of this run"),
    "a computation for the cache": (wait_in_cache, "another process that computes the same result (pid "),
    "the record of reads": (
        lambda folder: _lock(folder / "entry.json"),
        "another process that counts a read (pid ",
    ),
    "a job of a study": (wait_in_study, "waiting for other processes: 1 job, first a job (pid "),
}


def hold(folder: Path, ready) -> None:
    claims = [Claim(folder / name) for name in (".entry.claim", ".entry.json.lock")]
    assert all(claim.take() for claim in claims)
    ready.set()
    time.sleep(100)


def run(name: str, folder: Path, limit: float) -> None:
    """Wait in a process of its own, and write what ends the wait."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    waiting.SAY_SECONDS, waiting.SILENT_SECONDS = 0.1, limit
    sys.stderr = (folder / "log").open("w", buffering=1)
    logging.getLogger("acclimate").addHandler(logging.StreamHandler(sys.stderr))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_on_signals():
            WAITS[name][0](folder)
    except (Stopped, UserError) as error:
        print_line(f"ended: {error}")
        os._exit(3)


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


TOGETHER = "an operation of all processes"
"""It starts threads, so it runs in processes that were not forked from this one, which has threads, too."""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=pytest.mark.slow if name == TOGETHER or number == signal.SIGTERM else ())
        for name in WAITS
        for number in (signal.SIGINT, signal.SIGTERM, None)
    ],
)
def test_a_wait_is_reported_and_ends(name, number, tmp_path):
    """The owner of every claim is alive but gives no sign of life, as where it is stopped."""
    said = WAITS[name][1]
    ready = FORK.Event()
    holder = FORK.Process(target=hold, args=(tmp_path, ready), daemon=True)
    holder.start()
    assert ready.wait(30)
    made = multiprocessing.get_context("spawn") if name == TOGETHER else FORK
    process = made.Process(target=run, args=(name, tmp_path, 600.0 if number else 0.6))
    try:
        process.start()
        log = tmp_path / "log"
        wait_until(lambda: log.exists() and said in log.read_text(), 90 if name == TOGETHER else 15)
        if number:
            os.kill(process.pid, number)
        wait_until(lambda: process.exitcode is not None, 20 if number is None else 10)
        ended = log.read_text().partition("ended: ")[2]
        assert process.exitcode == 3, log.read_text()
        assert ended.startswith(signal.Signals(number).name if number else "Waited 0 minutes in vain for"), ended
    finally:
        holder.kill()
        process.kill()


@each("name", distributed.RANK_VARIABLES)
def test_an_empty_variable_of_a_launcher_is_one_process(name, monkeypatch):
    monkeypatch.setenv(name, "")
    assert join_process_group().size == 1 and name not in os.environ


def test_no_other_code_waits():
    """Sleeping, and operations of all processes, are found by their names in the source."""
    sleeps = {
        "base/waiting.py": 1,
        "base/locks.py": 1,  # an owner on another machine, with a limit of its own
        "study/executor.py": 1,  # workers, each of which has a limit
        "study/workers.py": 1,  # a minute in which workers save
    }
    found = {}
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if count := len(re.findall(r"\bsleep\(", text)):
            found[path.relative_to(SOURCE).as_posix()] = count
        assert not re.findall(r"dist\.barrier|\bjoin\(timeout|\.acquire\(\)", text.replace("_lease.acquire()", "")), (
            path
        )
        for call in re.findall(r"dist\.(?:all_reduce|broadcast|all_gather)\(.*", text):
            assert "async_op=True" in call, f"{path.name}: {call}"
    assert found == sleeps
