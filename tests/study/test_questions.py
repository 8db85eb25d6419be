"""A study of question answering, on a tiny random model."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.results.scores import NOT_LEARNED, WITHHELD
from acclimate.study.backend import Backend
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import plan, read_study
from tests.tasks.qa.toy import squad
from tests.tiny import TEXTS, save_tiny


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    save_tiny("bert", tmp_path / "model")
    (tmp_path / "text.txt").write_text("".join(f"{text} {number}\n" for number in range(20) for text in TEXTS))
    for name, count in (("food", 16), ("before", 12)):
        (tmp_path / name).mkdir()
        for split, size in (("train", count), ("test", 10)):
            (tmp_path / name / f"{split}.json").write_text(json.dumps(squad(size, f"{name}-{split}")))
    (tmp_path / "words").mkdir()
    for split in ("train", "test"):
        (tmp_path / "words" / f"{split}.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    return tmp_path


def study(folder, *tasks, **more):
    return StudyConfig.of(
        {
            "models": str(folder / "model"),
            "methods": ["none", "mlm"],
            "domains": [
                {
                    "name": "d",
                    "corpus": str(folder / "text.txt"),
                    "tasks": [
                        {**task, **{k: str(folder / task[k]) for k in ("path", "first") if k in task}}
                        for task in tasks
                    ],
                }
            ],
            "adapt": {"steps": 2, "batch_size": 8, "max_length": 16},
            "finetune": {"epochs": 1, "max_length": 48},
            "evaluate": {"documents": 5, "max_length": 16},
            "seeds": 2,
            "adapt_seeds": [0],
            **more,
        }
    )


def keys(config):
    graph = plan(read_study(config, Backend()))
    return {job.key: job.identity for job in graph.jobs.values() if job.name == "finetune"}


@pytest.mark.slow
def test_questions_are_compared_by_f1_or_the_metric_of_the_task(folder):
    config = study(folder, {"path": "food"}, {"path": "food", "name": "ranked", "metric": "mrr"})
    results = compare(config, folder / "out", progress=False)
    assert [row["metric"] for row in results["scores"]] == ["f1", "f1", "mrr", "mrr"]
    second = results["scores"][1]
    for name in ("f1", "exact_match", "strict_accuracy", "lenient_accuracy", "mrr"):
        values = [results["scores"][0][name]["by_seed"], second[name]["by_seed"]]
        mean = sum(a - b for a, b in zip(values[1], values[0], strict=True)) / 2
        assert second["difference"][name]["difference"] == pytest.approx(mean)
    assert results["scores"][3]["difference"]["mrr"]["verdict"] in (WITHHELD, NOT_LEARNED)
    assert second["test_items"] == 10
    assert (folder / "out" / "report.html").is_file()
    with pytest.raises(UserError, match="Unknown metric of the task 'food' 'macro_f1'"):
        compare(study(folder, {"path": "food", "metric": "macro_f1"}), folder / "out", progress=False)


def test_the_first_task_is_part_of_the_identity(folder):
    plain = keys(study(folder, {"path": "food"}))
    first = keys(study(folder, {"path": "food", "first": "before", "first_epochs": 2}))
    assert not plain.keys() & first.keys()
    for one, two in zip(plain.values(), first.values(), strict=True):
        assert (one.pop("first"), one["settings"].pop("first_epochs", None)) == (None, None)
        assert (len(two.pop("first")), two["settings"].pop("first_epochs")) == (64, 2)
        assert one == two
    again = keys(study(folder, {"path": "food", "first": "before", "first_epochs": 2}))
    assert first.keys() == again.keys()
    (folder / "before" / "train.json").write_text(json.dumps(squad(11, "other")))
    assert not first.keys() & keys(study(folder, {"path": "food", "first": "before", "first_epochs": 2})).keys()


def test_questions_have_their_own_default_length(folder):
    tasks = ({"path": "food"}, {"path": "words"})
    lengths = {cell["settings"]["max_length"] for cell in keys(study(folder, *tasks, finetune={"epochs": 1})).values()}
    assert lengths == {128, 384}


def test_a_study_in_two_stages_runs(folder):
    config = study(folder, {"path": "food", "first": "before", "first_learning_rate": 1e-3}, methods=["none"], seeds=1)
    results = compare(config, folder / "out", progress=False)
    assert results["jobs"]["failed"] == 0
    assert len(list((folder / "cache" / "trained").iterdir())) == 1


def test_an_unsuitable_first_task_is_found_before_training(folder):
    with pytest.raises(UserError, match="a task of the same kind"):
        compare(study(folder, {"path": "food", "first": "words"}), folder / "out", progress=False)
    assert not (folder / "out").exists()
    with pytest.raises(UserError, match="'first_epochs' needs a first task"):
        study(folder, {"path": "food", "first_epochs": 2})


def test_paths_of_first_tasks_are_relative_to_the_study_file(folder):
    (folder / "study.yaml").write_text(
        "models: [model]\nmethods: [none]\ndomains: [{name: d, corpus: text.txt, "
        "tasks: [{path: food, first: before}]}]\n"
    )
    assert StudyConfig.load(folder / "study.yaml").domains[0].tasks[0].first == str(folder / "before")


@pytest.mark.needs("tapter")
def test_files_of_a_method_are_relative_to_the_study_file(folder):
    (folder / "study.yaml").write_text(
        "models: [model]\ndomains: [{name: d, corpus: text.txt}]\n"
        "methods: [none, {name: tapter, vectors: v.bin, general: ./text.txt, stop_words: english}]\n"
    )
    given = StudyConfig.load(folder / "study.yaml").methods[1].parameters
    assert given == {
        "vectors": str(folder / "v.bin"),
        "general": str(folder / "text.txt"),
        "stop_words": "english",
    }
