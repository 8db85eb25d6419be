"""Ctrl-C in a process: the first saves as SIGTERM does, the second ends at once, and the last line is true."""

from __future__ import annotations

import signal

import pytest

from acclimate.engine.trainer import StepTrainer
from tests.robustness.killed_process import results, run

RESUMES, REPEATS = "to resume from the last checkpoint", "There is no checkpoint of this training yet"
FINISHED = "it does not repeat what is finished"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def heeded():
    """Heed Ctrl-C also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(monkeypatch, training: int, step: int, times: int) -> None:
    """Let forked commands get Ctrl-C before a step of the n-th training, from 1."""
    plain_step, plain_run, count = StepTrainer.training_step, StepTrainer.run, [0]

    def counting(self, *args, **given):
        count[0] += 1
        return plain_run(self, *args, **given)

    def interrupting(self, *args, **given):
        for _ in range(times * ((count[0], self.state.global_step) == (training, step))):
            signal.raise_signal(signal.SIGINT)
        return plain_step(self, *args, **given)

    monkeypatch.setattr(StepTrainer, "run", counting)
    monkeypatch.setattr(StepTrainer, "training_step", interrupting)


def auto_command(commands: dict[str, list]) -> list:
    """Return a tournament of the base model and plain training, which has no race."""
    given = commands["adapt"]
    words = [part for flag in ("--model", "--corpus") for part in (flag, given[given.index(flag) + 1])]
    words += ["--task", commands["finetune"][commands["finetune"].index("--task") + 1], "--methods", "lm"]
    settings = ("adapt.batch_size=6", "adapt.max_length=16", "finetune.epochs=1", "finetune.max_length=16")
    sizes = [
        part
        for one in (*settings, "search=false", "evaluate.documents=8", "evaluate.max_length=16")
        for part in ("--set", one)
    ]
    return ["auto", *words, "--minutes", 60, "--tokens", 200, *sizes, "--out", "out"]


@pytest.mark.parametrize(
    ("verb", "training", "step", "times", "said"),
    [
        ("adapt", 1, 1, 1, RESUMES),
        ("adapt", 1, 1, 2, REPEATS),
        ("finetune", 1, 1, 1, RESUMES),
        ("finetune", 2, 1, 2, REPEATS),
        ("compare", 2, 1, 1, RESUMES),  # an adaptation
        ("compare", 1, 1, 1, FINISHED),  # a fine-tuning, which has no checkpoints in a study
        ("auto", 1, 0, 1, FINISHED),  # the timing
        ("auto", 8, 0, 1, FINISHED),
    ],
)
def test_ctrl_c_and_the_same_command_again(commands, tmp_path, monkeypatch, verb, training, step, times, said):
    several_steps = {"finetune": ["--batch-size", 4], "compare": ["--set", "finetune.batch_size=4"]}
    commands = {name: [*words, *several_steps.get(name, [])] for name, words in commands.items()}
    commands["auto"] = auto_command(commands)
    with monkeypatch.context() as patch:
        interrupt(patch, training, step, times)
        ended = run(commands[verb], tmp_path / "cut")
    assert ended.code == 128 + signal.SIGINT, ended.said
    assert "Stopping after this step; press Ctrl-C again" in ended.said
    last = ended.said.splitlines()[-1]
    assert last.startswith("Stopped by SIGINT. ") and said in last
    ended = run(commands[verb], tmp_path / "cut")
    assert ended.code == 0, ended.said
    if verb != "auto":
        assert run(commands[verb], tmp_path / "whole").code == 0
        assert results(tmp_path / "cut") == results(tmp_path / "whole")
