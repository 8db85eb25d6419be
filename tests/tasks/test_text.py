"""The unlabelled text of a task."""

from __future__ import annotations

from acclimate.data.task_kinds import task_texts
from acclimate.tasks.kinds.classification.data import Task


def test_train_texts_and_pairs_are_distinct_and_in_order():
    rows = [
        {"text": "The soup was cold.", "text_pair": "soup", "label": "bad"},
        {"text": "The soup was cold.", "text_pair": "", "label": "good"},
        {"text": "Kind waiter.", "text_pair": "soup", "label": "good"},
    ]
    test = [{"text": "unseen", "text_pair": "x", "label": "good"}]
    assert task_texts(Task.of("t", rows, test, test)) == ["The soup was cold.", "soup", "Kind waiter."]


def test_single_texts():
    rows = [{"text": "one", "label": 0}, {"text": "two", "label": 1}, {"text": "one", "label": 1}]
    assert task_texts(Task.of("t", rows, rows[:1])) == ["one", "two"]
