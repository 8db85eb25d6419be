"""Adapting to the text of a task: what is read, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest

from acclimate.adaptation import method as registry
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import TASK_EPOCHS
from acclimate.adaptation.method import Method, register
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.test_cli import call
from tests.tiny import TEXTS

SHORT = {"batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def rows(texts, pair=None):
    more = {} if pair is None else {"text_pair": pair}
    return [{"text": text, "label": ("no", "yes")[number % 2], **more} for number, text in enumerate(texts)]


@pytest.fixture
def task(tmp_path):
    """A folder with eight train texts, one of them duplicated, and other words in dev and test."""
    folder = tmp_path / "task"
    folder.mkdir()
    train = [*TEXTS[:7], TEXTS[0]]
    for split, texts in (("train", train), ("dev", ["xx yy", "uu"]), ("test", ["qq ww", "jj"])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(texts)))
    return folder


@pytest.fixture
def spy():
    """A method that records the context that it receives."""
    seen = []

    @register("spy")
    class Spy(Method):
        def prepare(self, run):
            seen.append(run)

    yield seen
    registry.REGISTRY.entries.pop("spy")


def decoded(run):
    return sorted(run.tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in run.rows)


def test_without_a_corpus_the_train_text_is_read_and_nothing_of_dev_and_test(tiny_bert, task, tmp_path, spy):
    adapt(tiny_bert, None, "spy", tmp_path / "out", task=task, steps=1, **{**SHORT, "max_length": 48})
    (run,) = spy
    assert len(run.rows) == 7  # a duplicate text is read once
    everything = " ".join(decoded(run))
    assert "pizza" in everything and "waiter" in everything
    assert not any(word in everything.replace(" ", "") for word in ("xxyy", "uu", "qqww", "jj"))
    assert isinstance(run.task, Task) and run.task.fingerprint() == load_task(task).fingerprint()
    card = json.loads((tmp_path / "out" / "acclimate.json").read_text())
    assert card["task"] == run.task.fingerprint() and card["text"]["documents"] == 7


def test_with_a_corpus_the_task_text_is_not_trained_on(tiny_bert, task, tmp_path, spy):
    loaded = load_task(task)
    adapt(tiny_bert, Corpus.of(["the wine", "a score"]), "spy", tmp_path / "out", task=loaded, steps=1, **SHORT)
    (run,) = spy
    assert decoded(run) == ["a score", "the wine"] and run.task is loaded


def test_both_texts_of_a_pair_are_documents(tiny_bert, tmp_path, spy):
    task = Task.of("pairs", rows(["the soup", "the wine"], "the menu"), rows(["a test"], "of data"))
    adapt(tiny_bert, task=task, method="spy", out=tmp_path / "out", steps=1, **SHORT)
    assert decoded(spy[0]) == ["the menu", "the soup", "the wine"]


@pytest.mark.needs("tapt")
def test_default_epochs_are_100_for_a_task_and_1_for_a_corpus(tiny_bert, tmp_path, monkeypatch):
    assert TASK_EPOCHS == 100
    monkeypatch.setattr(sys.modules["acclimate.adaptation.adapt"], "TASK_EPOCHS", 5)
    task = Task.of("two", rows(["the soup", "the wine"]), rows(["a test"]))
    for name, method, source, epochs in (
        ("mlm", "mlm", {"task": task}, 5),
        ("tapt", "tapt", {"task": task}, 5),
        ("curated", "tapt", {"corpus": Corpus.of(["the soup", "the wine"])}, 5),
        ("domain", "mlm", {"corpus": Corpus.of(["the soup", "the wine"])}, 1),
    ):
        result = adapt(tiny_bert, method=method, out=tmp_path / name, **source, **{**SHORT, "batch_size": 2})
        assert result.steps == epochs == result.parameters["budget"]["epochs"]


@pytest.mark.needs("tapt")
@each(
    ("method", "given", "message"),
    [
        ("mlm", (), "no text to adapt to"),
        ("tapt", ("corpus", "task"), "dapt\\+tapt"),
        ("dapt+tapt", ("task",), "give it with --corpus"),
        ("dapt+tapt", ("corpus",), "needs a labelled task"),
    ],
)
def test_missing_or_ambiguous_text_is_reported(tiny_bert, task, tmp_path, method, given, message):
    sources = {"corpus": Corpus.of(TEXTS), "task": task}
    with pytest.raises(UserError, match=message):
        adapt(tiny_bert, method=method, out=tmp_path / "out", **{name: sources[name] for name in given}, **SHORT)
    assert not (tmp_path / "out").exists()


@pytest.mark.needs("tapt")
def test_the_command_line(tiny_bert, task, tmp_path, monkeypatch, capsys):
    common = ["--model", tiny_bert, "--steps", 2, "--batch-size", 4, "--max-length", 24, "--quiet"]
    code, out, _ = call(
        monkeypatch, capsys, "adapt", "--task", task, "--method", "tapt", "--out", tmp_path / "a", *common
    )
    assert code == 0 and "tapt, 2 steps" in out
    code, _, error = call(monkeypatch, capsys, "adapt", "--out", tmp_path / "b", *common)
    assert code == 2 and "--corpus" in error
