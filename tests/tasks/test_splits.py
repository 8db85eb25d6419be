"""Random subsets of a task, and a task without its test split."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.tasks.kinds.classification.data import Example, Task
from acclimate.tasks.kinds.qa.data import QATask
from acclimate.tasks.splits import cut_dev, limit_splits, replace_test_with_dev


def rows(split: str, count: int, several: bool = False) -> list[dict]:
    made = [{"text": f"{split} {i}", "label": "ab"[i % 10 == 0]} for i in range(count)]
    return (
        [{**row, "label": [row["label"]], "document": f"d{i // 3}"} for i, row in enumerate(made)] if several else made
    )


def task(several: bool = False) -> Task:
    return Task.of("t", rows("train", 200, several), rows("test", 90, several), rows("dev", 30, several))


def test_a_subset_is_random_fixed_and_in_order():
    whole = task()
    part = limit_splits(whole, train=50, test=20)
    assert (len(part.train), len(part.dev), len(part.test)) == (50, 30, 20)
    places = [whole.train.index(example) for example in part.train]
    assert places == sorted(set(places)) and places != list(range(50))
    assert limit_splits(whole, train=50).train == part.train
    assert part.labels == whole.labels and part.fingerprint() != whole.fingerprint()
    assert 0 < Counter(example.label for example in part.train)[1] < 15  # about a tenth, as in the whole
    assert limit_splits(whole, train=1000, dev=30) is whole
    assert set(limit_splits(whole, train=20).train) != set(part.train[:20])


def test_documents_stay_together():
    part = limit_splits(task(several=True), test=20)
    counts = Counter(example.document for example in part.test)
    assert set(counts.values()) == {3} and len(part.test) == 18
    with pytest.raises(UserError, match="A limit of 2 leaves nothing of the test split of 't'"):
        limit_splits(task(several=True), test=2)


def test_snippets_of_a_question_stay_together():
    def squad(count):
        entries = [
            {"id": f"{i:024x}_{part:03d}", "question": "Where?", "answers": [{"text": "here", "answer_start": 3}]}
            for i in range(count)
            for part in (1, 2)
        ]
        return {"data": [{"paragraphs": [{"context": "It here is.", "qas": entries}]}]}

    part = limit_splits(QATask.of("q", squad(20), squad(20)), test=7)
    assert len(part.test) == 6 and set(Counter(question.item for question in part.test).values()) == {2}


class Untouchable(list):
    """A test split that raises an error when it is read."""

    def _no(self, *_):
        raise AssertionError("the test split was read")

    __iter__ = __getitem__ = __len__ = __contains__ = __eq__ = __bool__ = _no  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def test_replacing_test_by_dev_reads_no_test_row():
    whole = task()
    held = replace_test_with_dev(Task("t", whole.train, Untouchable(whole.test), whole.labels, whole.dev))
    assert held.test == held.dev == whole.dev
    other = Task("t", whole.train, Untouchable(whole.test[:3]), whole.labels, whole.dev)
    assert held.fingerprint() == replace_test_with_dev(other).fingerprint() != whole.fingerprint()
    assert held.scoring().metrics == whole.scoring().metrics
    with pytest.raises(UserError, match="'t' has no dev split, which a search needs"):
        replace_test_with_dev(Task("t", whole.train, whole.test, whole.labels))


def halves(task):
    """Return the tune and the confirming rows of a task, after checking what is true of every cut."""
    tune, confirm = (cut_dev(task, part) for part in ("tune", "confirm"))
    assert sorted(map(repr, [*tune.test, *confirm.test])) == sorted(map(repr, task.dev))
    assert [row for row in task.dev if row in tune.test] == tune.test  # in the order of the file
    assert tune.dev == [*confirm.test, *task.test]
    assert (tune.train, confirm.train) == (task.train, task.train)
    return tune.test, confirm.test


def test_dev_is_cut_by_label_and_the_cut_does_not_depend_on_the_order():
    whole = task()
    whole = replace(whole, dev=[Example(f"dev {i}", None, int(i % 5 == 0)) for i in range(200)])
    tune, confirm = halves(whole)
    assert Counter(row.label for row in tune) == Counter(row.label for row in confirm) == {0: 80, 1: 20}
    assert tune != whole.dev[:100]
    turned = halves(replace(whole, dev=whole.dev[::-1]))
    assert [rows[::-1] for rows in turned] == [tune, confirm]
    assert cut_dev(whole, "dev").test == whole.dev


def test_numbers_are_cut_in_proportion():
    rng = np.random.default_rng(0)
    made = [{"text": f"text {i}", "label": float(number)} for i, number in enumerate(rng.normal(size=200))]
    whole = load_task({"train": made, "test": made, "validation": made}, task_kind="regression")
    tune, confirm = halves(whole)
    assert abs(len(tune) - len(confirm)) <= 10
    assert abs(np.mean([row.target for row in tune]) - np.mean([row.target for row in confirm])) < 0.1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "A ", "b", "c", "d e", "d  e"]), st.sampled_from(["x", "y", "z"])),
        min_size=2,
        max_size=30,
    )
)
def test_rows_of_a_document_or_a_text_are_never_separated(given_rows):
    dev = [Example(text, None, (0,), document) for text, document in given_rows]
    whole = Task("t", dev, [], ["a"], dev, multi_label=True)
    try:
        tune, confirm = halves(whole)
    except UserError as error:
        assert "cannot be cut" in str(error)
        return
    for value in (lambda row: row.document, lambda row: row.item):
        assert {value(row) for row in tune}.isdisjoint(value(row) for row in confirm)


def test_a_dev_split_that_cannot_be_cut_is_an_error():
    whole = task()
    with pytest.raises(UserError, match="no dev split"):
        cut_dev(replace(whole, dev=[]), "tune")
    with pytest.raises(UserError, match="cannot be cut"):
        cut_dev(replace(whole, dev=[Example("the same", None, 0)] * 5), "tune")
