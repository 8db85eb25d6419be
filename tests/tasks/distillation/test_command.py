"""``acclimate distill``."""

from __future__ import annotations

import json

import pytest

from tests.cases import each
from tests.tasks.test_classification import keyword_task
from tests.test_cli import call


@pytest.fixture
def folder(tmp_path):
    task = keyword_task(train=16, test=6)
    for split in ("train", "dev", "test"):
        rows = [{"text": row.text, "label": task.labels[row.label]} for row in getattr(task, split)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_negative_class_and_loss_scale(teacher, student, folder, monkeypatch, capsys):
    options = ["--epochs", 1, "--distill-share", 1, "--student-epochs", 1, "--precision", "fp32", "--quiet"]
    options += ["--connector", "student", "--negative", "bad"]
    losses = []
    for number, scale in enumerate((1e-3, 1e-2)):
        out = folder / f"out-{number}"
        code, said, wrong = call(
            monkeypatch, capsys, "distill", "--teacher", teacher, "--student", student, "--task", folder,
            "--out", out, "--scale", scale, "--connector-learning-rate", 1e-9, *options,
        )  # fmt: skip
        assert code == 0 and "Error" not in wrong
        assert "positive_micro_f1: teacher" in said
        losses.append(json.loads((out / "seed-0" / "metrics.json").read_text())["train_loss"])
    assert losses[1] == pytest.approx(10 * losses[0], rel=1e-3)


def test_a_teacher_for_all_seeds(tiny_bert, student, folder, monkeypatch, capsys):
    out = folder / "out"
    options = ["--epochs", 2, "--student-epochs", 1, "--teacher-epochs", 1, "--seeds", 2, "--quiet"]
    code, said, wrong = call(
        monkeypatch, capsys, "distill", "--teacher", tiny_bert, "--student", student, "--task", folder,
        "--out", out, "--distill-share", 0.5, "--precision", "fp32", *options,
    )  # fmt: skip
    assert code == 0 and "Error" not in wrong
    assert sorted(entry.name for entry in out.iterdir()) == ["seed-0", "seed-1", "teacher"]
    results = [json.loads((out / f"seed-{seed}" / "metrics.json").read_text()) for seed in (0, 1)]
    assert [result["teacher_trained"] for result in results] == [True, False]
    assert results[0]["teacher_metrics"] == results[1]["teacher_metrics"]
    assert results[0]["distilled_epochs"] == 1
    assert "of 24 units" in said
    assert f"macro_f1: teacher {results[0]['teacher_metrics']['macro_f1']:.4f}" in said


@each(
    ("arguments", "message"),
    [
        (["--seeds", 0], "seeds must be at least 1"),
        (["--seeds", 2, "--few-shot", 4], "all seeds share one teacher"),
        (["--distill-share", 2], "--distill-share must be at most 1"),
        (["--teacher", "./nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_line(tiny_bert, student, folder, monkeypatch, capsys, arguments, message):
    options = ["--teacher", tiny_bert, "--student", student, "--task", folder, "--quiet", *arguments]
    code, _, said = call(monkeypatch, capsys, "distill", *options)
    assert code == 2
    assert message in said
    assert len([line for line in said.strip().splitlines() if not line.startswith("The task ")]) == 1
