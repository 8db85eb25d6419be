"""Multiple choice in everything that a study and the command line do with tasks."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from acclimate.adaptation.adapt import adapt
from acclimate.cli.main import app
from acclimate.report.summary import summarize
from acclimate.study.compare import compare
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from tests.tasks.choice.toy import QUICK, rows


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    task = folder / "exam"
    task.mkdir()
    for number, split in enumerate(("train", "dev", "test")):
        text = "".join(json.dumps(row) + "\n" for row in rows(24, seed=number))
        (task / f"{split}.jsonl").write_text(text)
    corpus = folder / "corpus.txt"
    lines = ["; ".join([row["question"], *row["choices"]]) for row in rows(120, seed=5)]
    asked = json.loads((task / "test.jsonl").read_text().splitlines()[0])
    corpus.write_text("\n\n".join([*lines, "\n".join([asked["question"], *asked["choices"]])]))
    return folder, task, corpus


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_study_and_its_report(places, tiny_bert, tiny_llama, tmp_path):
    _folder, task, corpus = places
    study = {
        "name": "choices", "models": [str(tiny_bert), str(tiny_llama)], "methods": ["none", "lm"], "seeds": 2,
        "domains": [{"name": "d", "corpus": str(corpus), "tasks": [str(task)]}],
        "adapt": {"steps": 1, "batch_size": 4, "max_length": 16}, "finetune": {"max_length": 64, "epochs": 1},
        "evaluate": {"max_length": 16},
    }  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(study))
    results = compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    assert not results.failures
    assert {(row.metric, row.kind) for row in results.scores} == {("accuracy", "choice")} and len(results.scores) == 4
    (table,) = [table for table in results.tables if table.title == "Comparison with other answers"]
    assert {row[4] for row in table.rows} == {
        *("chance", "most frequent position", "before training"),
        *("likelihood of the whole choice", "likelihood per token"),
    }
    assert all(row.collapsed for row in results.scores)  # one epoch on 24 items teaches nothing
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Not learned: the models have not learned the task" in summarize(results).headline
    assert "no better than chance" in page and "Comparison with other answers" in page
    leaked = [row for split in results.contamination for row in split.texts]
    assert any(row.found for row in leaked)


@pytest.mark.slow
def test_compare_searches_on_the_command_line(places, tiny_bert, tmp_path):
    _folder, task, corpus = places
    out = run("compare", "--model", tiny_bert, "--corpus", corpus, "--task", task, "--out", tmp_path / "out",
              "--no-advice", "--set", "adapt.steps=1", "--set", "seeds=1", "--set", "finetune.epochs=1",
              "--set", "adapt.max_length=16", "--set", "evaluate.max_length=16", "--set", "finetune.max_length=32",
              "--set", "search={finetune: {learning_rate: [0.0001, 0.001]}}")  # fmt: skip
    assert "accuracy" in out.lower()


@pytest.mark.needs("tapt")
def test_other_commands(places, tiny_llama, tmp_path):
    _folder, task, corpus = places
    options = ["--model", tiny_llama, "--task", task, "--max-length", 64]
    out = run("finetune", *options, "--epochs", 0)
    assert "accuracy" in out and "chance" in out and "likelihood per token" in out
    out = run("inspect", "leakage", "--corpus", corpus, "--task", task)
    assert re.search(r"exam, test: \d of 24 texts \(1 exact", out), out
    adapt(tiny_llama, None, "tapt", tmp_path / "t", task=task, steps=1, batch_size=4, max_length=16, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("models", [("llama", "bert"), ("bert", "llama")])
def test_a_student_learns_from_the_teacher_alone(models, encoders, decoders, tmp_path):
    teacher, student = ((encoders | decoders)[name] for name in models)
    splits = {"train": rows(48), "test": rows(24, 2)}
    wrong = [{**row, "answer": (row["answer"] + 1) % len(row["choices"])} for row in splits["train"]]
    shared = {**QUICK, "max_length": 64, "learning_rate": 1e-2, "batch_size": 8}
    finetune(teacher, splits, out=tmp_path / "teacher", epochs=8, **shared)
    options = {"epochs": 8, "distill_share": 1.0, "student_epochs": 1, **shared}
    result = distill(tmp_path / "teacher", student, {**splits, "train": wrong}, **options)
    assert not result.teacher_trained and result.teacher_metrics["accuracy"] > 0.8 and result.objective == "kl"
    assert result.metrics["accuracy"] > max(0.8, result.student_metrics["accuracy"] + 0.1)


@pytest.mark.slow
def test_advice(places, tiny_bert):
    folder, task, corpus = places
    general = folder / "general.txt"
    general.write_text("\n\n".join(f"a model {number} has a layer for the text" for number in range(60)))
    assert "exam" in run(
        "advise", "--model", tiny_bert, "--corpus", corpus, "--general", general, "--task", task, "--max-length", 16
    )
