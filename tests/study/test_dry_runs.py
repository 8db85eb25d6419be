"""Dry runs of adapt and finetune, whose forecasts are those of compare and auto."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from acclimate.adaptation.options import AdaptCommand
from acclimate.base.options import build
from acclimate.labs.auto.auto import auto
from acclimate.study import pricing
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.dry_runs import plan_adaptation, plan_finetuning, price
from acclimate.study.forecast import forecast
from acclimate.study.pricing import Durations
from acclimate.tasks.options import FinetuneCommand
from acclimate.tasks.seeds import count_seeds
from tests.study.fakes import write_task
from tests.study.test_forecast import Machine
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a tiny model, a text and a task."""
    folder = tmp_path_factory.mktemp("dry")
    save_tiny("bert", folder / "model")
    (folder / "corpus.txt").write_text("".join(f"{text} {number}\n" for number in range(40) for text in TEXTS))
    texts = {"train": 200, "dev": 40, "test": 60}
    rows = {split: [f"{TEXTS[n % len(TEXTS)]} {split} {n}" for n in range(count)] for split, count in texts.items()}
    write_task(folder / "task", "task", **rows)
    return folder


def files_of(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_nothing_is_trained_or_written_and_what_was_inferred_is_printed(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys.modules["acclimate.study.dry_runs"], "Backend", Machine().backend)
    before = files_of(place)
    code, said, err = call(
        monkeypatch, capsys, *("adapt", "--model", "model", "--corpus", "corpus.txt", "--max-length", 24, "--dry-run")
    )
    assert code == 0, err
    for line in ("model: masked language model, ", "steps: ", "tokens: about ", "memory: ", "time: about "):
        assert f"\n{line}" in said
    assert "Timing adapt · model · lm on this machine (1 of 1) ..." in err
    assert said.endswith("acclimate adapt --model model --corpus corpus.txt --max-length 24\n")
    code, said, err = call(
        monkeypatch, capsys, *("finetune", "--model", "model", "--task", "task", "--max-length", 24, "--dry-run")
    )
    assert code == 0, err
    for line in ("labels: a, b, c", "epochs: 5", "steps: 65 with each of 5 seeds", "time: about "):
        assert f"\n{line}" in said
    for command, problem in (
        (("adapt", "--model", "model", "--corpus", "nothing.txt"), "nothing.txt"),
        (("finetune", "--model", "model", "--task", "nowhere"), "nowhere"),
        (("finetune", "--model", "model", "--task", "task", "--probe"), "dry"),
    ):
        code, _, err = call(monkeypatch, capsys, *command, "--dry-run")
        assert code == 2 and problem in err
    assert files_of(place) == before


def test_adapt_finetune_compare_and_auto_agree(place, tmp_path, monkeypatch):
    """They price jobs of the same kind by the same small jobs."""
    machine = Machine()
    machine.speed, machine.per_row = 80.0, 0.05
    monkeypatch.setitem(Durations.time.__kwdefaults__, "clock", machine.clock)
    how = {"backend": machine.backend(), "progress": False}
    texts = {"model": str(place / "model"), "corpus": str(place / "corpus.txt")}
    plan = plan_adaptation(build(AdaptCommand, **texts, out=tmp_path / "a", max_length=24, steps=400))
    adapting = [price(*plan, **how).seconds]
    given = {"model": texts["model"], "task": str(place / "task"), "max_length": 24, "seeds": 1}
    tuning = [price(*plan_finetuning(build(FinetuneCommand, **given)), **how).seconds]
    short = {"adapt.max_length": 24, "finetune.max_length": 24, "evaluate.max_length": 24}
    study = {
        "models": [texts["model"]],
        "methods": ["none", "lm"],
        "domains": [{"name": "d", "corpus": texts["corpus"], "tasks": [str(place / "task")]}],
        **{section: {"max_length": 24} for section in ("adapt", "finetune", "evaluate")},
        "seeds": 2,
    }
    study["adapt"]["steps"] = 400
    found = forecast(StudyConfig.of(study), tmp_path / "out", machine.backend(), timed=True)
    per_job = {one.kind: one.seconds / one.jobs for one in found.estimates}
    adapting.append(per_job["adapt"])
    tuning.append(per_job["finetune"])
    planned = auto(
        **texts, task=str(place / "task"), out=tmp_path / "auto", minutes=1_000, methods="lm", settings=short,
        dry_run=True, backend=machine.backend(), progress=False,
    )  # fmt: skip
    adapting.append(planned.plan.prices.adapting["lm"].seconds(400 * 10))
    tuning.append(planned.plan.prices.scoring)
    for estimates in (adapting, tuning):
        assert max(estimates) < 1.3 * min(estimates), estimates


@pytest.mark.slow
def test_a_forecast_is_within_a_factor_of_the_real_run(place, tmp_path, monkeypatch):
    monkeypatch.setattr(pricing, "PILOT_SECONDS", 3.0)
    study = {
        "models": [str(place / "model")],
        "methods": ["none", "lm"],
        "domains": [{"name": "d", "corpus": str(place / "corpus.txt"), "tasks": [str(place / "task")]}],
        **{section: {"max_length": 24} for section in ("finetune", "evaluate")},
        "adapt": {"max_length": 24, "steps": 400, "batch_size": 16},
        "seeds": 2,
    }
    ratios = []
    for number in range(3):  # other processes of the machine may slow one of the two
        expected = forecast(StudyConfig.of(study), tmp_path / "out", timed=True).seconds
        began = time.perf_counter()
        compare(study, tmp_path / f"out-{number}", progress=False)
        ratios.append((time.perf_counter() - began) / expected)
        if 1 / 1.5 < ratios[-1] < 1.5:
            return
    raise AssertionError(ratios)


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 5), ({"seeds": 2}, 2), ({"all_labels": True}, 1), ({"all_labels": True, "seeds": 3}, 3)],
)
def test_as_many_seeds_are_planned_as_run(place, given, count):
    options = {"model": str(place / "model"), "task": str(place / "task"), "max_length": 24, **given}
    jobs, _ = plan_finetuning(build(FinetuneCommand, **options))
    assert len(jobs) == count_seeds(build(FinetuneCommand, **options)) == count
