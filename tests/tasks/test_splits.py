"""Random subsets of a task, and a task without its test split."""

from __future__ import annotations

from collections import Counter

import pytest

from acclimate.errors import UserError
from acclimate.tasks import Task
from acclimate.tasks.qa import QATask
from acclimate.tasks.splits import limit_splits, replace_test_with_dev


def rows(split: str, count: int, several: bool = False) -> list[dict]:
    made = [{"text": f"{split} {i}", "label": "ab"[i % 10 == 0], "document": f"d{i // 3}"} for i in range(count)]
    return [{**row, "label": [row["label"]]} for row in made] if several else made


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
