"""Labels that a writer gives: rows of a task, and agreement with given labels."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import TRANSFORMS, Context, find_accounts, read_operations
from acclimate.data.task_kinds import load_task
from acclimate.tasks.annotation import Agreement, AnnotateEntities, AnnotateLabels, place_mentions
from tests.cases import each
from tests.data.select.test_operations import pool
from tests.data.test_answer_parsing import ODD

KINDS = [(what, how) for what in ("soup", "wine") for how in ("good", "bad")]
TEXTS = [f"the {what} was {how} on day {day}" for day in range(6) for what, how in KINDS]
PLACES = ["Paris", "Rome", "New York"]
SENTENCES = [f"Ann went to {place} and then to {other}." for place in PLACES for other in PLACES] * 2


def label(prompt):
    """Say what the text says, but for soups on day 3, and nothing of wine on day 2."""
    text = prompt.rsplit("Text:", 1)[1]
    if "wine" in text and "day 2" in text:
        return "who knows"
    return "Label: **Bad**" if "bad" in text or ("day 3" in text and "soup" in text) else "good"


def mark(prompt):
    """Mark the first place, and one that is not there."""
    text = prompt.rsplit("Text:", 1)[1].strip()
    place = next(place for place in PLACES if text.startswith(f"Ann went to {place}"))
    found = [
        {"text": place, "type": "Place"},
        {"text": "Atlantis", "type": "place"},
        {"text": "Ann", "type": "person"},
    ]
    return "[]" if place == "Rome" else json.dumps(found)


def test_documents_get_a_label_and_agreement_is_measured(tmp_path):
    task = [{"text": text, "label": text.split()[3]} for text in TEXTS]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task))
    given = {"annotate-labels": {"by": label, "task": str(tmp_path / "task.jsonl"), "checked": 100}}
    made = transform(Corpus.of(TEXTS), given, tmp_path / "o.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert len(rows) == len(TEXTS) - 2 and {row["label"] for row in rows} == {"good", "bad"}
    assert {row["prompt"].split()[0] for row in rows} == {"annotate-labels/labels"}
    assert load_task(tmp_path / "o.jsonl").labels == ["bad", "good"]
    (account,) = find_accounts(made)
    train = [example.text for example in load_task(tmp_path / "task.jsonl").train]
    said = [label(f"Text:{text}").removeprefix("Label: ").strip("*").lower() for text in train]
    gold = [text.split()[3] for text in train]
    found = account.notes["agreement"]
    assert (account.notes["calls"], account.notes["from_cache"]) == (len(TEXTS), len(train))
    budget = {"key": "another", "max_calls": len(train)}  # that of the examples, too
    with pytest.raises(UserError, match="max_calls"):
        transform(Corpus.of(["the soup was bad today"]), {"annotate-labels": {**given["annotate-labels"], **budget}})
    assert (found["checked"], found["unreadable"]) == (len(train), said.count("who knows"))
    agreed = np.mean([one == two for one, two in zip(gold, said, strict=True)])
    assert found["accuracy"]["value"] == pytest.approx(agreed)
    assert found["kappa"]["value"] == pytest.approx(cohen_kappa_score(gold, said))
    assert all(found[name]["low"] < found[name]["value"] < found[name]["high"] for name in ("accuracy", "kappa"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_kappa_is_that_of_scikit_learn(pairs):
    gold, found = zip(*pairs, strict=True)
    with np.errstate(all="ignore"):
        expected = cohen_kappa_score(gold, found, labels=range(4))
    scored = Agreement(classes=3).score(gold, found, "kappa")
    assert scored == pytest.approx(0.0 if np.isnan(expected) else expected)


def test_documents_get_entities_and_agreement_is_measured(tmp_path):
    task = []
    for text in SENTENCES:
        starts = [text.index("to ") + 3, text.rindex("to ") + 3]
        place = [next(place for place in PLACES if text.startswith(place, start)) for start in starts]
        spans = [{"start": at, "end": at + len(one), "label": "place"} for at, one in zip(starts, place, strict=True)]
        task.append({"text": text, "spans": spans})
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task))
    by = {"by": mark, "task": str(tmp_path / "task.jsonl"), "checked": 4}
    made = transform(Corpus.of(SENTENCES), {"annotate-entities": by}, tmp_path / "o.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [len(row["spans"]) for row in rows] == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert all(row["text"][span["start"] : span["end"]] in PLACES for row in rows for span in row["spans"])
    assert load_task(tmp_path / "o.jsonl").task_kind == "entities"
    (account,) = find_accounts(made)
    assert account.notes["unused"] == {"mentions not in the text": 6, "unknown types": 6}
    found = account.notes["agreement"]
    assert found["checked"] == 4 and 0 < found["micro_f1"]["value"] < 1
    assert found["micro_f1"]["low"] <= found["micro_f1"]["value"] <= found["micro_f1"]["high"]


@given(
    st.text("ab X", max_size=20),
    st.lists(st.tuples(st.text("abX ", min_size=1, max_size=4), st.just("x")), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_mentions_do_not_overlap(text, mentions):
    spans = place_mentions(text, mentions)
    assert all(one["end"] <= two["start"] for one, two in pairwise(spans)) and len(spans) <= len(mentions)
    words = sorted(" ".join(mention.split()) for mention, _ in mentions)
    assert all(" ".join(text[span["start"] : span["end"]].split()) in words for span in spans)


@each(
    ("text", "mentions", "found"),
    [
        ("art in Bart and art", ["art", "art", "art"], [(0, 3), (8, 11), (16, 19)]),
        ("New  York, New York", ["New York", "New York", "York"], [(0, 9), (11, 19)]),
        ("北京和北京", ["北京", "北京"], [(0, 2), (3, 5)]),
        ("a b", ["c", ""], []),
    ],
)
def test_mentions_are_whole_words_where_possible(text, mentions, found):
    assert [(one["start"], one["end"]) for one in place_mentions(text, [(one, "x") for one in mentions])] == found


@given(ODD)
@settings(max_examples=20, deadline=None)
def test_any_answer_is_handled(answer):
    for operation in (AnnotateLabels, AnnotateEntities):
        context = Context()
        made = list(operation(by=lambda _: answer, key=answer, labels="one,two,+").apply(pool(["one text"]), context))
        assert all(one.text == "one text" for one in made)
        assert made or context.notes["unused"] or context.notes["empty"]


@each(
    ("name", "given", "message"),
    [
        ("annotate-labels", {}, "needs the labels: give labels=ONE,TWO"),
        ("annotate-labels", {"labels": "one,two", "checked": 0}, "checked is at least 1"),
        ("annotate-labels", {"labels": "one"}, "no labels to choose from"),
        ("annotate-entities", {"labels": " , "}, "no labels to choose from"),
        ("annotate-labels", {"task": "missing.csv"}, "missing"),
        ("annotate-entities", {"task": "rows.jsonl"}, "is no task of texts with entities"),
    ],
)
def test_mistakes_are_explained(name, given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"text": f"text {n}", "label": n % 2}) + "\n" for n in range(20))
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    with pytest.raises(UserError, match=message):
        operations = read_operations({name: {"by": label, **given}}, TRANSFORMS)
        operations[0].identity()
        list(operations[0].apply(pool(["a"]), Context()))
