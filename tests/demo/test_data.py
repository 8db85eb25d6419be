from __future__ import annotations

import json

import pytest

from acclimate.corpus import Corpus
from acclimate.demo import data as rooms
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
def machine(monkeypatch):
    """A machine whose packages and standard library hold a few documents; counts the readings."""
    calls = []

    def packages(name):
        calls.append(name)
        return [document for document in library(70) if document.package == name]

    general = [Document("json", "json", f"f{n}", f"General text number {n}.") for n in range(12)]
    monkeypatch.setattr(rooms, "package_documents", packages)
    monkeypatch.setattr(rooms, "library_documents", lambda: iter(general))
    monkeypatch.setattr(rooms, "HELDOUT_DOCUMENTS", 20)
    monkeypatch.setattr(rooms, "GENERAL_DOCUMENTS", 5)
    original = rooms.derive_task
    monkeypatch.setattr(rooms, "derive_task", lambda documents: original(documents, train=4, dev=1, test=3))
    return calls


def test_everything_is_written_and_nothing_leaks(tmp_path, machine):
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


def test_the_second_time_nothing_is_read_again(tmp_path, machine):
    first = prepare_data(tmp_path / "data", progress=False)
    text = first.corpus.read_bytes()
    machine.clear()
    assert prepare_data(tmp_path / "data", progress=False) == first
    assert machine == []
    (tmp_path / "data" / "about.json").write_text("broken")
    prepare_data(tmp_path / "data", progress=False)
    assert machine and first.corpus.read_bytes() == text


def test_a_corpus_of_ones_own_is_split_by_document_without_the_texts_of_the_test(tmp_path, machine):
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
    assert machine == []


@each("part", ["corpus", "general", "task"])
def test_a_part_that_is_not_there_is_an_error_before_any_work(tmp_path, machine, part):
    with pytest.raises(UserError, match="nowhere"):
        prepare_data(tmp_path / "data", progress=False, **{part: str(tmp_path / "nowhere.txt")})
    assert machine == []
    assert not (tmp_path / "data").exists()
