"""The search of DoKTra: fine-tuning of the student, then the penalty of its teacher, then distillation."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.study.compare import compare
from tests.study.fakes import read, write_classifier
from tests.study.searching import BEST, Trials, searching
from tests.study.test_real import folder as real_folder  # noqa: F401
from tests.study.test_real import write_study
from tests.tiny import save_tiny

ROW = {"label": "doktra", "teacher": {"model": "model", "method": "mlm"}, "students": ["other"]}
GRID = {"teacher_penalty": [0, 0.3, 0.7], "distill_share": [0.6, 0.7], "confidence_penalty": [0, 0.3]}


@pytest.fixture
def two(folder):
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    return {"models": [str(folder / "model"), str(folder / "other")]}


def test_each_stage_uses_what_earlier_ones_chose(folder, tmp_path, two, no_report):
    trials = Trials()
    search = {"seeds": 2, "finetune": {"learning_rate": [3e-5, BEST]}, "distill": GRID}
    config = searching(folder, **two, distill=[ROW], search=search)
    results = compare(config, tmp_path / "out", progress=False, backend=trials.backend())
    stages = [(row["stage"], row["model"], row["tried"], row["possible"]) for row in results["searches"]]
    assert stages == [("method", name, 2, 2) for name in ("model", "model", "other", "other")] + [
        ("teacher", "", 3, 3),
        ("distillation", "other", 4, 4),
    ]
    # The penalties cost 0.3 and 0.7 points and improve calibration: within one point, the strongest is chosen.
    assert results["searches"][4]["chosen"] == {"teacher_penalty": 0.7}
    assert results["searches"][4]["seeds"] == [3, 4]
    assert results["searches"][5]["chosen"] == {"distill_share": 0.7, "confidence_penalty": 0.3}
    tried = list(trials.of("distill", test=False))
    assert len(tried) == 4 * 2
    assert {(call["student_learning_rate"], "teacher_penalty" in call) for call in tried} == {(BEST, False)}
    (teacher,) = trials.of("teacher", test=True)
    assert (teacher["confidence_penalty"], teacher["learning_rate"]) == (0.7, BEST)
    final = list(trials.of("distill", test=True))
    assert [(call["distill_share"], call["confidence_penalty"]) for call in final] == [(0.7, 0.3)] * 3
    assert all("TEST" not in call["splits"] for call in trials.calls[: -(3 * 4 + 1 + 3)])
    again = Trials()
    compare(config, tmp_path / "out", progress=False, backend=again.backend())
    assert not again.calls


def test_a_zero_tolerance_chooses_the_best_teacher(folder, tmp_path, two, no_report):
    trials = Trials()
    search = {"seeds": 1, "teacher_tolerance": 0, "distill": {"teacher_penalty": [0, 0.3]}}
    config = searching(folder, **two, distill=[ROW], search=search)
    results = compare(config, tmp_path / "out", progress=False, backend=trials.backend())
    (row,) = results["searches"]
    assert (row["chosen"], row["methods"]) == ({"teacher_penalty": 0}, ["doktra"])


def test_an_external_teacher(folder, tmp_path, two, no_report):
    write_classifier(folder / "ready")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "config.json").write_text('{"model_type": "bert"}')
    trials = Trials()
    rows = [{"label": name, "teacher": str(folder / name), "students": ["other"]} for name in ("elsewhere", "ready")]
    rows[0]["search"] = {"teacher_penalty": [0, 0.3]}
    config = searching(folder, **two, distill=rows, search={"seeds": 1, "distill": {"teacher_penalty": [0.7]}})
    results = compare(config, tmp_path / "out", progress=False, backend=trials.backend())
    (row,) = results["searches"]  # a classifier of the task is not fine-tuned, so there is nothing to search
    assert [trial["settings"]["teacher_penalty"] for trial in row["trials"]] == [0, 0.3]
    assert {call["model"] for call in trials.of("finetune", test=False)} == {str(folder / "elsewhere")}


def test_an_unknown_setting_of_distillation(folder, two):
    with pytest.raises(UserError, match="unknown option 'margn'"):
        read(searching(folder, **two, distill=[ROW], search={"distill": {"margn": [1]}}), Trials())


@pytest.mark.slow
def test_a_real_search_does_not_depend_on_the_test_split(real_folder):  # noqa: F811
    save_tiny("bert", real_folder / "model")
    rows = (real_folder / "task" / "train.jsonl").read_text().splitlines()
    (real_folder / "task" / "dev.jsonl").write_text("\n".join(rows[:6]) + "\n")
    path = write_study(real_folder, "[none]")
    path.write_text(path.read_text() + "search: {seeds: 1, finetune: {learning_rate: [1e-5, 1e-2], epochs: [1, 2]}}\n")
    results = compare(path, real_folder / "out", progress=False)
    (row,) = results["searches"]
    (taken,) = [trial for trial in row["trials"] if trial["chosen"]]
    assert row["tried"] == 4 and taken["score"] == max(trial["score"] for trial in row["trials"])
    assert all("ece" in trial and len(trial["by_seed"]) == 1 for trial in row["trials"])
    assert results["scores"][0]["test_items"] == 24
    assert "Hyper-parameter search" in (real_folder / "out" / "results.md").read_text()
    assert "Hyper-parameter search" in (real_folder / "out" / "report.html").read_text()
    tests = [json.loads(line) for line in (real_folder / "task" / "test.jsonl").read_text().splitlines()]
    turned = [{**row, "label": {"no": "yes", "yes": "no"}[row["label"]]} for row in tests]
    (real_folder / "task" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in turned))
    other = compare(path, real_folder / "out", progress=False)
    assert other["searches"] == results["searches"]
    assert other["jobs"]["done"] == 3  # two seeds and the floor on the new test split; no job of the search runs again
