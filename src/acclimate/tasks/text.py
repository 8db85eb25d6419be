"""The text of a task, without its labels: what task-adaptive pre-training learns from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acclimate.tasks.kinds import LabelledTask
from acclimate.tasks.qa import QATask


def task_text(task: LabelledTask) -> list[str]:
    """Return the texts of the train split, in the order of the file, each distinct text once.

    The two texts of a pair are documents of their own, and so are a question and its passage: what joins them is for
    the end task to say. Nothing of dev or test is in it, so that a model that has read it can still be measured on
    them.

    Args:
        task: A loaded task.

    Returns:
        Texts that are not empty.
    """
    return list(dict.fromkeys(text for text in _texts(task) if text and text.strip()))


def _texts(task: Any) -> Iterator[str | None]:
    for example in task.train:
        yield from (example.text, example.passage if isinstance(task, QATask) else example.text_pair)
