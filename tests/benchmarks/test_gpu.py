"""The queue of measurements on an accelerator: every entry runs on a CPU, and a failure costs nothing."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acclimate.base.files import read_json, write_json
from benchmarks import gpu

QUICK = ("decoder-135m", "finetuning", "evaluation")
SLOW = [one.name for one in gpu.QUEUE if one.name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_measurement_runs_on_a_cpu(name, tmp_path):
    one = next(one for one in gpu.QUEUE if one.name == name)
    found = one.run(gpu.Setting(tmp_path, rounds=1, steps=4, quick=True))
    for contender, runs in found.get("contenders", {}).items():
        assert runs and all("error" not in run for run in runs), (contender, runs)
        assert runs[0].get("tokens_per_second", runs[0].get("texts_per_second")) > 0
    scores = found.get("study", {}).get("scores", [])
    assert found.get("contenders") or found.get("host") or scores or "passed" in found["summary"]


def options(out: Path, **changes) -> argparse.Namespace:
    return argparse.Namespace(
        **{"out": out, "minutes": 9.0, "only": None, "models": None, "rounds": 1, "quick": True, **changes}
    )


def test_a_failure_costs_nothing_and_a_second_call_goes_on(tmp_path, monkeypatch, capsys):
    asked = []
    broken = {"decoder-135m", "encoder-base-32"}

    def run(limit, command, environment):
        name = command[command.index("--measure") + 1]
        asked.append(name)
        if name == "encoder-base-32" and name in broken:
            raise subprocess.TimeoutExpired(command, limit)
        if name in broken:
            return 1, "Traceback\nRuntimeError: no kernel image"
        write_json(
            tmp_path / f"{name}.json", {**gpu.describe_machine(), "contenders": {"lm": [{"tokens_per_second": 7.0}]}}
        )
        return 0, ""

    monkeypatch.setattr(gpu, "run_within", run)
    gpu.run_queue(options(tmp_path))
    assert asked == [one.name for one in gpu.QUEUE]
    assert "no kernel image" in read_json(tmp_path / "decoder-135m.failed.json")["error"]
    assert "stopped after 60 s" in read_json(tmp_path / "encoder-base-32.failed.json")["error"]
    (tmp_path / "profile.json").unlink()
    asked.clear()
    broken.clear()
    gpu.run_queue(options(tmp_path))
    assert asked == ["profile", "decoder-135m", "encoder-base-32"]  # what has failed comes last
    assert not list(tmp_path.glob("*.failed.json"))
    asked.clear()
    gpu.run_queue(options(tmp_path, only="methods"))
    assert asked == ["methods"]
    gpu.run_queue(options(tmp_path, only="methods", minutes=0.1))
    assert asked == ["methods"]  # no time is left
    assert "| methods | lm | 7 |" in capsys.readouterr().out


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="Available: tests, decoder-135m"):
        gpu.pending(tmp_path, "nothing")


def test_what_a_measurement_started_ends_with_it(tmp_path):
    started = f"import subprocess as s; s.run(['sh', '-c', 'echo $$ > {tmp_path}/pid; sleep 60'])"
    with pytest.raises(subprocess.TimeoutExpired):
        gpu.run_within(2, [sys.executable, "-S", "-c", started], dict(os.environ))
    number = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while _runs(number) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(number)
    code, errors = gpu.run_within(20, [sys.executable, "-S", "-c", "import sys; sys.exit('no room')"], {})
    assert (code, errors.strip()) == (1, "no room")


def _runs(number: int) -> bool:
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_tests_of_the_queue_exist():
    assert all((gpu.ROOT / folder).is_dir() for folder in gpu.TESTS)
