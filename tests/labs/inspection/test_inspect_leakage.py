"""`acclimate inspect leakage` from files to its output."""

from __future__ import annotations

import json
import sys

import pytest

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task, task_texts
from acclimate.labs.inspection.leakage import inspect_leakage
from acclimate.tasks.interfaces import evaluation_texts, item_texts
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.kinds.qa.data import QATask

LONG = "The waiter brought us a cold soup, and nobody at the table was surprised by that any more."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "task").mkdir()
    texts = {"train": "a train text", "dev": "Only here.", "test": LONG}
    for split, text in texts.items():
        rows = [{"text": text, "text_pair": f"{split} pair {label}", "label": label} for label in ("a", "b")]
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"In the evening we went out. {LONG} That was all.", "a train text", "something else"]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return tmp_path


def test_texts_that_are_searched_for(folder):
    task = load_task(folder / "task")
    assert evaluation_texts(task) == {
        "dev": ["Only here.", "dev pair a", "dev pair b"],
        "test": [LONG, "test pair a", "test pair b"],
    }
    assert task_texts(task) == ["a train text", "train pair a", "train pair b"]
    assert item_texts(task)["train"] == ["a train text\ntrain pair a", "a train text\ntrain pair b"]
    assert item_texts(task)["dev"] == ["Only here.\ndev pair a", "Only here.\ndev pair b"]


def squad(**passages):
    asked = {
        passage: [{"id": f"{name}{number}", "question": "How was it?", "answers": [{"text": "It", "answer_start": 0}]}]
        for number, (name, passage) in enumerate(passages.items())
    }
    return {"data": [{"paragraphs": [{"context": passage, "qas": qas} for passage, qas in asked.items()]}]}


def test_train_splits_are_searched_by_item(folder):
    # An aspect with another sentence, or a question on another passage, is not a match.
    rows = {
        "train": [(LONG, "soup"), ("The wine was as warm as the day was long, sadly.", "wine")],
        "test": [(LONG, "soup"), ("Nobody had told them that their wine list was out of date.", "wine")],
    }
    pairs = Task.of("pairs", *([{"text": a, "text_pair": b, "label": b} for a, b in rows[s]] for s in rows))
    shared = f"It was warm. {LONG}"
    questions = QATask.of("asked", squad(a="It is somewhere else.", b=shared), squad(c=shared, d="It is new."))
    report = inspect_leakage([pairs, questions], progress=False)
    assert report.keys() == {"acclimate", "rules", "train"}
    counts = [
        (row["task"], row["split"], row["texts"], row["found"], row["exact"])
        for found in report["train"]
        for row in found["texts"]
    ]
    assert counts == [("pairs", "test", 2, 1, 1), ("asked", "test", 2, 1, 1)]
    assert [found["examples"][0]["text"] for found in report["train"]] == [f"{LONG}\nsoup", shared]


def test_in_python(folder):
    report = inspect_leakage([folder / "task"], folder / "corpus.jsonl", progress=False)
    assert (report["documents"], report["flagged"]) == (3, 1)
    test = next(row for row in report["texts"] if row["split"] == "test")
    assert test == {
        **{"task": "task", "split": "test", "texts": 3, "short": 2},
        **{"found": 1, "exact": 0, "near": 0, "contained": 1},
    }
    clean = Corpus(folder / "corpus.jsonl").without(report["digests"])
    assert list(clean) == ["a train text", "something else"]
    with pytest.raises(UserError, match="same name"):
        inspect_leakage([folder / "task"] * 2, folder / "corpus.jsonl", progress=False)


def test_on_the_command_line(folder, monkeypatch, capsys):
    arguments = ["acclimate", "inspect", "leakage", "--corpus", folder / "corpus.jsonl", "--task", folder / "task"]
    arguments += ["--out", folder / "leakage.json", "--quiet"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "1 of 3 documents contain a dev or test text." in shown
    assert "task, test: 1 of 3 texts (0 exact, 0 near, 1 contained); 2 are short" in shown
    assert "is in 'In the evening" in shown
    assert "task, test: 0 of 2 texts in its own train split (0 exact, 0 near, 0 contained)" in shown
    assert json.loads((folder / "leakage.json").read_text())["flagged"] == 1
