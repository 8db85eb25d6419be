"""Transforms: new documents with fields, accounts, the command line, studies, and what is said of mistakes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import adapt, select, transform
from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.data.operations import TRANSFORMS, Transform, find_accounts, read_accounts, read_operations
from acclimate.data.pool import Document, Documents, count_words
from acclimate.study.contamination import check_contamination
from tests.cases import each
from tests.study.fakes import files, graph_of, of_kind, read, study

POOL = [f"{'word ' * (number % 7 + 1)}number {number}." for number in range(60)]
ROWS = [{"text": f"word {number} {'yes' if number % 2 else 'no'}", "label": number % 2} for number in range(40)]


@pytest.fixture
def user_transform():
    @dataclass(frozen=True)
    class Halve(Transform):
        name = "halve"
        part: int = 0

        def apply(self, documents, context):
            for number, text in enumerate(documents):
                words = text.split()
                if len(words) > 3:
                    yield Document(" ".join(words[: len(words) // 2]), {"of": number, "part": self.part})
                    yield " ".join(words[len(words) // 2 :])

    TRANSFORMS.names()
    TRANSFORMS.register("halve")(Halve)
    yield
    del TRANSFORMS.entries["halve"]


@given(st.lists(st.tuples(st.text(), st.dictionaries(st.text(), st.text() | st.integers())), max_size=12), st.data())
@settings(max_examples=25, deadline=None)
def test_fields_remain_with_their_documents(rows, data):
    documents = Documents.of(((Document(*row), 0) for row in rows), ("memory",))
    assert list(documents.with_fields()) == rows and list(documents) == [text for text, _ in rows]
    if rows:
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
        assert list(documents.take(chosen).with_fields()) == [rows[place] for place in chosen]


def test_new_documents_their_fields_and_the_account_are_written(user_transform, tmp_path):
    out = tmp_path / "made.jsonl"
    first = select(POOL, {"random": {"documents": 30}})
    made = transform(first, "halve part=3", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    texts = [text for text in first if len(text.split()) > 3]
    assert [row["text"] for row in rows] == list(made) and len(rows) == 2 * len(texts)
    assert [" ".join([one["text"], other["text"]]) for one, other in zip(rows[::2], rows[1::2], strict=True)] == texts
    assert {row.get("part") for row in rows[::2]} == {3} and all(row.keys() == {"text"} for row in rows[1::2])
    before, account = find_accounts(made)
    assert (before.kind, account.kind, account.operation) == ("selection", "transform", "halve part=3")
    assert (account.documents_in, account.documents_out) == (30, len(rows))
    assert account.tokens_out == sum(map(sum, [count_words([row["text"]]) for row in rows]))
    assert f"{len(rows)} documents from 30" in account.summary()
    assert [one["kind"] for one in (before.public(), account.public())] == ["selection", "transform"]


def test_repeated_documents_are_all_read(user_transform, tmp_path):
    texts = ["one two three four", "one two six seven"]
    assert list(transform(texts, "halve")) == ["one two", "three four", "one two", "six seven"]


def test_the_identity_differs_from_that_of_a_selection(user_transform):
    (one,) = read_operations("halve", TRANSFORMS)
    assert one.identity()["kind"] == "transform"
    assert "kind" not in read_operations("duplicates")[0].identity()


@pytest.mark.needs("neighbors")
@each(
    ("by", "message"),
    [
        ("halv", "transform 'halv'. Did you mean 'halve'"),
        ("halve part=x", "Transform 'halve', parameter 'part'"),
        ("halve prt=1", "Did you mean 'part'"),
        ({"halve": 3}, "Transform 'halve' expects named parameters"),
        (3, "A transform is NAME"),
        ("nearest", "Unknown transform 'nearest'"),
        ("neighbors", "needs the text of a task; give the task"),
        ([], "'by' must name at least one operation"),
    ],
)
def test_mistakes_are_explained(by, message, user_transform):
    with pytest.raises(UserError, match=message):
        transform(POOL, by)
    with pytest.raises(UserError, match="Transform 'halve' makes no document of 2 documents"):
        transform(["a b", "c d"], "halve")


@pytest.mark.needs("neighbors")
def test_the_command_line(tmp_path, monkeypatch, capsys):
    corpus, task = tmp_path / "pool.txt", tmp_path / "task.jsonl"
    corpus.write_text("\n".join(POOL))
    task.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["--corpus", corpus, "--task", task, "--by", "neighbors k=2 copies=2", "--out", tmp_path / "o.jsonl"]
    monkeypatch.setattr(sys, "argv", ["acclimate", "transform", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "neighbors k=2 copies=2:" in out and "acclimate adapt" in out and "kept:" in out
    (account,) = read_accounts(tmp_path / "o.jsonl")
    assert len(list(Corpus(tmp_path / "o.jsonl"))) == account.documents_out == 2 * account.notes["task_texts"]


@pytest.mark.needs("neighbors")
def test_the_card_says_how_the_text_was_transformed(tiny_bert, tmp_path):
    made = transform(POOL, {"neighbors": {"k": 2}}, task=ROWS)
    out = tmp_path / "adapted"
    adapt(tiny_bert, made, "lm", out, steps=1, batch_size=4, max_length=16, precision="fp32", progress=False)
    assert "Transformed with `neighbors`, k 2" in (out / "README.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = files(tmp_path_factory.mktemp("transforms") / "data")
    lines = [f"cooking onions and butter, part {number}" for number in range(100, 200)]
    lines += [f"intent train text {number} in other words" for number in range(300, 360)]
    (folder / "pool.txt").write_text("\n".join(lines))
    return folder


def transforming(folder, methods, **corpus):
    domain = {"name": "cs", "corpus": {"from": str(folder / "pool.txt"), **corpus}, "tasks": [str(folder / "intent")]}
    return study(folder, domains=[domain], methods=methods)


@pytest.mark.needs("neighbors")
def test_a_study_selects_and_then_transforms(folder):
    methods = ["none", "mlm", {"name": "mlm", "select": "random"}, {"name": "mlm", "transform": []}]
    methods.append({"name": "mlm", "transform": {"neighbors": {"k": 2, "by": "random"}}})
    values = transforming(folder, methods, select={"nearest": 5}, transform={"neighbors": 2})
    inputs = read(values)
    joined, control, selected, drawn = (
        list(inputs.corpus("cs", label))
        for label in ("mlm", "mlm (select=random)", "mlm (transform=none)", "mlm (transform=neighbors k=2 by=random)")
    )
    assert {text.count("\n") for text in joined} == {2} and len(joined) == len(control) == len(drawn)
    assert all(line in selected for text in joined for line in text.split("\n")[1:])
    assert any(line not in selected for text in control for line in text.split("\n")[1:])
    assert all("\n" not in text for text in selected)
    operations = [
        [one.name for one in find_accounts(inputs.corpus("cs", label))] for label in ("mlm", methods[2]["name"])
    ]
    assert operations[0] == ["nearest", "neighbors"]
    assert len({job.key for job in of_kind(graph_of(values), "adapt")}) == 4


def test_a_study_looks_for_test_texts_in_what_a_model_wrote(folder):
    leaked = "intent test text 1"
    code = f"def write(prompt):\n    return {leaked!r} if 'part 17' in prompt else prompt[::-1]\n"
    (folder / "leaks.py").write_text(code)
    written = {"rewrite": {"by": f"{folder / 'leaks.py'}:write", "styles": "plain"}}
    methods = ["none", "mlm", {"name": "mlm", "label": "own", "transform": written}]
    inputs = read(transforming(folder, methods))
    found = check_contamination(inputs)
    assert leaked in list(inputs.corpus("cs", "own")) and len(found.documents["cs (own)"]) == 1
    assert found.documents["cs"] == []


@pytest.mark.needs("neighbors", "tapt")
@each(
    ("methods", "corpus", "message"),
    [
        (["mlm"], {"transform": "neighbours"}, "Did you mean 'neighbors'"),
        (["mlm"], {"transform": {"neighbors": {"k": 0}}}, "k must be at least 1"),
        (["mlm"], {"transfrm": "neighbors"}, "known here: from, select, transform, target"),
        ([{"name": "none", "transform": "neighbors"}], {}, "is not adapted"),
        (["none", {"name": "tapt", "transform": "neighbors"}], {}, "'transform' does not apply"),
    ],
)
def test_mistakes_in_studies_are_explained(folder, methods, corpus, message):
    with pytest.raises(UserError, match=message):
        read(transforming(folder, methods, **corpus))
