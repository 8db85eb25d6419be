"""Data of the demo: documentation of packages, or a user's text and task."""

from __future__ import annotations

import json

import pytest

from acclimate.corpus import Corpus
from acclimate.demo import data as demo_data
from acclimate.demo.data import prepare_data
from acclimate.demo.docstrings import Document
from acclimate.demo.task import TOPICS
from acclimate.errors import UserError
from acclimate.tasks import load_task
from tests.cases import each
from tests.demo.packages import library


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def packages_read(monkeypatch):
    """Replace packages and standard library by a few documents; return the list of packages that were read."""
    calls = []

    def packages(name):
        calls.append(name)
        return [document for document in library(70) if document.package == name]

    general = [Document("json", "json", f"f{n}", f"General text number {n}.") for n in range(12)]
    monkeypatch.setattr(demo_data, "package_documents", packages)
    monkeypatch.setattr(demo_data, "library_documents", lambda: iter(general))
    monkeypatch.setattr(demo_data, "HELDOUT_DOCUMENTS", 20)
    monkeypatch.setattr(demo_data, "GENERAL_DOCUMENTS", 5)
    original = demo_data.derive_task
    monkeypatch.setattr(demo_data, "derive_task", lambda documents: original(documents, train=4, dev=1, test=3))
    return calls


def test_the_splits_are_disjoint(tmp_path, packages_read):
    made = prepare_data(tmp_path / "data", progress=False)
    corpus, heldout = rows(made.corpus), rows(made.heldout)
    tested = rows(made.task / "test.jsonl") + rows(made.task / "dev.jsonl")
    assert len(heldout) == 20
    sources = {row["source"] for row in corpus}
    assert not sources & {row["source"] for row in heldout + tested}
    assert not {row["text"] for row in rows(made.warmup)} & {
        row["text"] for row in rows(tmp_path / "data/general.jsonl")
    }
    assert (len(rows(made.warmup)), made.general) == (7, [str(tmp_path / "data" / "general.jsonl")])
    assert made.about["corpus"]["documents"] == len(corpus)
    assert len(load_task(made.task).test) == 3 * len(TOPICS)


def test_a_second_call_reuses_the_data(tmp_path, packages_read):
    first = prepare_data(tmp_path / "data", progress=False)
    text = first.corpus.read_bytes()
    packages_read.clear()
    assert prepare_data(tmp_path / "data", progress=False) == first
    assert packages_read == []
    (tmp_path / "data" / "about.json").write_text("broken")
    prepare_data(tmp_path / "data", progress=False)
    assert packages_read and first.corpus.read_bytes() == text


def test_a_user_corpus_is_split_without_the_texts_of_the_test(tmp_path, packages_read):
    task = tmp_path / "task"
    task.mkdir()
    examples = [{"text": f"own text {n}", "label": n % 2} for n in range(6)]
    (task / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples[:4]))
    (task / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples[4:]))
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join(f"own text {n}" for n in range(40)))
    general = tmp_path / "general.txt"
    general.write_text("something\nelse")
    made = prepare_data(tmp_path / "data", corpus=file, general=general, task=task, progress=False)
    train, heldout = set(Corpus(made.corpus)), set(Corpus(made.heldout))
    assert not train & heldout
    assert train | heldout == {f"own text {n}" for n in range(40)} - {"own text 4", "own text 5"}
    assert (made.general, made.task, made.derived) == ([str(general)], task, False)
    assert packages_read == []


@each("part", ["corpus", "general", "task"])
def test_a_missing_input_is_an_error_before_any_work(tmp_path, packages_read, part):
    with pytest.raises(UserError, match="nowhere"):
        prepare_data(tmp_path / "data", progress=False, **{part: str(tmp_path / "nowhere.txt")})
    assert packages_read == []
    assert not (tmp_path / "data").exists()
