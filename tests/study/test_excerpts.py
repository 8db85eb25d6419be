"""Texts of a user are in no report, result, job, card or log, unless they are asked for."""

from __future__ import annotations

import json
import random

import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.study.compare import compare
from acclimate.tasks.finetune import finetune
from tests.tasks.test_contract import SAMPLES, options_of, splits_of
from tests.tiny import WORDS, save_tiny

UNKNOWN, KNOWN = "xqzjvk", "waiter"
"""Words of every text: one that a tokenizer takes apart, and one that is a token."""
QUICK = {"max_length": 16, "progress": False}
WRITTEN = {"report.html", "results.json", "README.md", "acclimate.json", "metrics.json", "predictions.jsonl"}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    chance = random.Random(0)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1 and word != KNOWN]

    def sentence() -> str:
        return " ".join([*chance.choices(words, k=8), UNKNOWN, KNOWN, *chance.choices(words, k=3)])

    texts = [sentence() for _ in range(60)]
    unusable = [{"text": [UNKNOWN]}, {"text": f"{UNKNOWN} \ud800"}, {"text": ""}]
    rows = [*({"text": text} for text in [*texts, texts[0]]), *unusable]
    labels = [{"text": texts[number + 20], "label": ("no", "yes")[number % 2]} for number in range(40)]
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "domain.jsonl").write_text("\n".join([*map(json.dumps, rows), "{"]))
    (folder / "general.txt").write_text("\n".join(sentence() for _ in range(40)))
    (folder / "task.jsonl").write_text("\n".join(map(json.dumps, [*labels, {"text": texts[0], "label": ""}])))
    save_tiny("bert", folder / "model")
    return folder


def with_texts(out):
    """The files with a word of the texts, but for vocabularies."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in ("tokenizer.json", "vocab.txt")]
    assert {path.name for path in files} >= WRITTEN
    words = [word.encode() for word in (UNKNOWN, KNOWN)]
    return {path.name for path in files if any(word in path.read_bytes() for word in words)}


def test_nothing_that_is_written_by_default_holds_a_text(data, tmp_path):
    selected = {"name": "mlm", "label": "selected", "select": ["duplicates", {"nearest": {"k": 3}}]}
    study = {
        "name": "s",
        "models": [str(data / "model")],
        "methods": ["none", "mlm", selected],
        "domains": [{"name": "d", "corpus": str(data / "domain.jsonl"), "tasks": [str(data / "task.jsonl")]}],
        "general": str(data / "general.txt"),
        "adapt": {"steps": 2, "batch_size": 8, "max_length": 16},
        "finetune": {"epochs": 1, "max_length": 16},
        "evaluate": {"documents": 10, "max_length": 16, "advice": True},
        "seeds": 1,
        "search": False,
    }
    out = tmp_path / "out"
    found = compare(study, out / "study", progress=False)
    assert found.contamination[0].flagged and found.selections[0].accounts[0].documents_out
    finetune(data / "model", data / "task.jsonl", out=out / "tuned", epochs=1, **QUICK)
    made = adapt(data / "model", data / "domain.jsonl", out=out / "adapted", steps=2, **QUICK)
    made.report(out / "adapted.html")
    assert with_texts(out) == set()
    asked = {**study["evaluate"], "masked_texts": 1}
    again = {**study, "methods": ["none", "mlm"], "adapt": {**study["adapt"], "steps": 3}, "evaluate": asked}
    compare(again, out / "study", progress=False)
    assert {"report.html", "results.json"} <= with_texts(out)


def planted(kind, row):
    """A row whose texts have the word, outside of answers."""
    if kind == "entities":
        return {**row, "tokens": [*row["tokens"], UNKNOWN], "tags": [*row["tags"], "O"]}
    texts = {"qa": ("context",), "retrieval": ("query", "positive")}
    texts |= {"choice": ("question",), "generation": ("question",)}
    return {**row, **{name: f"{row[name]} {UNKNOWN}" for name in texts.get(kind, ("text",))}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_model_of_any_kind_of_task_has_no_text_next_to_it(kind, data, tmp_path):
    pytest.importorskip(SAMPLES[kind].needs)
    rows = {split: [planted(kind, row) for row in found] for split, found in splits_of(kind).items()}
    start = save_tiny(SAMPLES[kind].model, data / "start")
    finetune(start, rows, out=tmp_path / "tuned", **{**options_of(kind), "epochs": 1})
    files = [path for path in (tmp_path / "tuned").rglob("*") if path.name not in ("tokenizer.json", "vocab.txt")]
    assert not [path.name for path in files if path.is_file() and UNKNOWN.encode() in path.read_bytes()]
