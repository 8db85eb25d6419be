"""``acclimate annotate``: its output directory and what it prints."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.papers.selective.annotation import annotate_task as annotate
from acclimate.papers.selective.test_selective import task
from acclimate.tasks.finetune import finetune
from tests.cases import each
from tests.test_cli import call

QUICK = {"epochs": 6, "learning_rate": 3e-3, "batch_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opinions")
    made = task()
    for split in ("train", "dev", "test"):
        rows = [{"text": row.text, "label": made.labels[row.label]} for row in getattr(made, split)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_command_writes_one_line_per_text_and_a_summary(tiny_bert, folder, tmp_path, monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys, "annotate", "--model", tiny_bert, "--task", folder, "--out", tmp_path / "out",
        "--set", "delta=0.1", "--epochs", 6, "--learning-rate", "3e-3", "--batch-size", 16, "--samples", 2,
        "--precision", "fp32", "--quiet",
    )  # fmt: skip
    assert code == 0, err
    lines = [json.loads(line) for line in (tmp_path / "out" / "annotated.jsonl").read_text().splitlines()]
    assert len(lines) == 96
    for line in lines:
        assert len(line["tokens"]) == len(line["importance"]) == len(line["score"])
        assert line["importance"] == [int(score < 0.1) for score in line["score"]]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    important = sum(sum(line["importance"]) for line in lines)
    assert summary["annotate"]["important"] == important
    assert f"{important:,} of {summary['annotate']['tokens']:,} tokens are important" in out
    assert len([line for line in out.splitlines() if line.startswith("  ")]) == 2


def test_a_classifier_of_the_task_is_not_fine_tuned_again(tiny_bert, folder, tmp_path, monkeypatch):
    options = {"settings": {"delta": 0.1}, "precision": "fp32", "progress": False}
    first = annotate(tiny_bert, folder, tmp_path / "a", **QUICK, **options)
    assert "minutes" in first.summary["finetune"]
    monkeypatch.setattr("acclimate.papers.selective.annotation.fine_tune_annotator", None)
    second = annotate(tmp_path / "a" / "classifier", folder, tmp_path / "b", **options)
    assert second.summary["finetune"]["accuracy"] == first.summary["finetune"]["accuracy"]
    one, two = ((tmp_path / name / "annotated.jsonl").read_text() for name in "ab")
    assert one == two
    assert second.samples == first.samples


def test_a_classifier_of_another_task_is_fine_tuned(tiny_bert, folder, tmp_path):
    other = task(seed=3)
    other = type(other).of(
        "other",
        [{"text": row.text, "label": f"kind {row.label}"} for row in other.train[:8]],
        [{"text": row.text, "label": f"kind {row.label}"} for row in other.test[:4]],
    )
    finetune(tiny_bert, other, epochs=1, out=tmp_path / "other", progress=False)
    made = annotate(tmp_path / "other", folder, tmp_path / "out", epochs=1, progress=False)
    assert "minutes" in made.summary["finetune"]


def test_an_output_directory_with_other_files_is_an_error(tiny_bert, folder, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="something other"):
        annotate(tiny_bert, folder, tmp_path, progress=False)


def test_an_unreadable_model_is_an_error(folder, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert", "hidden_size": "many"}')
    with pytest.raises(UserError, match="No model could be read"):
        annotate(tmp_path / "model", folder, tmp_path / "out", progress=False)


@each(
    ("option", "message"),
    [
        ({"seed": -1}, "'seed' must be"),
        ({"samples": -1}, "'samples' must be"),
        ({"settings": {"delta": 3}}, "between -1 and 1"),
    ],
)
def test_invalid_numbers_fail_before_any_work(folder, tmp_path, option, message):
    with pytest.raises(UserError, match=message):
        annotate("no-such/model/folder", folder, tmp_path / "out", progress=False, **option)
