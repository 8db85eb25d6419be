"""A fine-tuning or distillation that is killed resumes within its seed and ends with the same numbers."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from acclimate.engine import callbacks, trainer
from acclimate.engine.callbacks import find_newest_checkpoint
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from tests.kills import counted, killed
from tests.tasks.test_classification import keyword_task
from tests.tiny import save_tiny

FAST = {"learning_rate": 1e-3, "batch_size": 8, "max_length": 32, "precision": "fp32", "progress": False}


@pytest.fixture(autouse=True)
def checkpoints_after_every_step(monkeypatch, tmp_path):
    monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_CHECKPOINTS", -1)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))


def assert_same_run(one, two):
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    found, wanted = (json.loads((folder / "metrics.json").read_text()) for folder in (one, two))
    for timed in ("seconds", "stage_seconds", "training_seconds", "evaluation_seconds"):
        found.pop(timed, None), wanted.pop(timed, None)
    assert found == wanted
    lines = [[json.loads(line) for line in (f / "log.jsonl").read_text().splitlines()] for f in (one, two)]
    assert [{**line, "seconds": 0} for line in lines[0]] == [{**line, "seconds": 0} for line in lines[1]]
    assert [line["step"] for line in lines[0]] == list(range(1, len(lines[0]) + 1))


@pytest.mark.parametrize("at", [*(pytest.param(step, marks=pytest.mark.slow) for step in (2, 3, 4)), 7])
def test_fine_tuning_resumes_in_the_middle_and_at_the_end_of_an_epoch(tiny_bert, tmp_path, at):
    """Three steps per epoch; the best epoch on dev and its weights survive the kill."""
    task = keyword_task(train=24, test=12)
    options = {"epochs": 3, "select": "dev", "seed": 1, **FAST}
    whole = finetune(tiny_bert, task, out=tmp_path / "whole", **options)
    with killed(at):
        finetune(tiny_bert, task, out=tmp_path / "out", **options)
    work = tmp_path / ".out.work"
    assert find_newest_checkpoint(work / "steps").name == f"checkpoint-{at}"
    assert not (tmp_path / "out").exists()
    with counted() as steps:
        resumed = finetune(tiny_bert, task, out=tmp_path / "out", **options)
    assert steps == list(range(at, 9))
    assert resumed.probabilities == whole.probabilities and resumed.train_loss == whole.train_loss
    assert_same_run(tmp_path / "whole", tmp_path / "out")
    assert not work.exists()
    with counted() as steps:
        assert finetune(tiny_bert, task, out=tmp_path / "out", **options).metrics == whole.metrics
    assert not steps


def test_another_configuration_does_not_resume(tiny_bert, tmp_path):
    with killed(4):
        finetune(tiny_bert, keyword_task(train=24, test=12), out=tmp_path / "out", epochs=2, **FAST)
    with counted() as steps:
        finetune(tiny_bert, keyword_task(train=24, test=12), out=tmp_path / "out", epochs=2, seed=5, **FAST)
    assert steps == list(range(6))


def test_without_an_output_directory_there_are_no_checkpoints(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = []
    monkeypatch.setattr(trainer.StepTrainer, "_save_checkpoint", lambda *_: saved.append(1))
    finetune(tiny_bert, keyword_task(train=24, test=12), epochs=2, **FAST)
    assert not saved and not list(tmp_path.glob(".*.work"))


@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(7, marks=pytest.mark.slow)])
def test_distillation_resumes_in_both_phases(tiny_bert, tmp_path, at):
    """The connector, its optimizer and the disagreement curve are in a checkpoint; teacher and student are cached."""
    student = save_tiny("roberta", tmp_path / "student", hidden_size=24, num_attention_heads=2)
    task = keyword_task(train=24, test=12)
    options = {"connector": "student", "epochs": 3, "distill_share": 0.7, "schedule": "each", **FAST}
    options |= {"teacher_epochs": 1, "student_epochs": 1}
    whole = distill(tiny_bert, student, task, out=tmp_path / "whole", **options)
    with killed(at):
        distill(tiny_bert, student, task, out=tmp_path / "out", **options)
    with counted() as steps:
        resumed = distill(tiny_bert, student, task, out=tmp_path / "out", **options)
    assert steps == list(range(at, 9))
    assert resumed.disagreement == whole.disagreement and len(whole.disagreement) == 4
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_the_teacher_of_a_distillation_resumes_in_the_cache(tiny_bert, tmp_path):
    student = save_tiny("roberta", tmp_path / "student")
    options = {"epochs": 2, "distill_share": 0.5, "teacher_epochs": 2, "student_epochs": 1, **FAST}
    task = keyword_task(train=24, test=12)
    with killed(4):
        distill(tiny_bert, student, task, **options)
    with counted() as steps:
        distill(tiny_bert, student, task, **options)
    assert steps == [4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert not list((tmp_path / "cache" / "trained").glob(".*.work"))
