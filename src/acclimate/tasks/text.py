"""The text of a task, without its labels: what task-adaptive pre-training learns from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acclimate.tasks.kinds import LabelledTask
from acclimate.tasks.qa import QATask

JUDGED = ("dev", "test")
"""The splits that a model is judged on, or chosen by."""


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


def judged_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return the texts on which a model is judged, of each split that there is: ``"dev"``, ``"test"``.

    Args:
        task: A loaded task.

    Returns:
        As :func:`task_text` gives them, each distinct text once. Of a question it is the passage and the question.
    """
    found = {split: list(dict.fromkeys(t for t in _texts(task, split) if t and t.strip())) for split in JUDGED}
    return {split: texts for split, texts in found.items() if texts}


def _texts(task: Any, split: str = "train") -> Iterator[str | None]:
    for example in getattr(task, split, ()):
        yield from (example.text, example.passage if isinstance(task, QATask) else example.text_pair)
