"""Data of the demo: documentation of packages, and the task derived from it."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.labs.demo import data as demo_data
from acclimate.labs.demo.data import prepare_data
from acclimate.labs.demo.docstrings import Document
from acclimate.labs.demo.task import TOPICS
from tests.labs.demo.packages import library


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
    assert (len(rows(made.warmup)), made.general) == (7, tmp_path / "data" / "general.jsonl")
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


def test_a_package_that_is_not_installed_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_data, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="pip install no_such_package"):
        prepare_data(tmp_path / "data", progress=False)
    assert not (tmp_path / "data").exists()


def test_a_standard_library_without_docstrings_is_an_error(tmp_path, packages_read, monkeypatch):
    monkeypatch.setattr(demo_data, "library_documents", lambda: iter(()))
    with pytest.raises(UserError, match="no documentation strings"):
        prepare_data(tmp_path / "data", progress=False)
    assert not (tmp_path / "data").exists()
