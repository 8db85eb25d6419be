"""The text of a task, without its labels: what task-adaptive pre-training learns from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acclimate.tasks.kinds import LabelledTask
from acclimate.tasks.qa import QATask
from acclimate.tasks.readers import SPLITS

EVALUATION_SPLITS = ("dev", "test")
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
    return list(dict.fromkeys(text for text in _split_texts(task) if text and text.strip()))


def evaluation_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return the texts on which a model is judged, of each split that there is: ``"dev"``, ``"test"``.

    Args:
        task: A loaded task.

    Returns:
        As :func:`task_text` gives them, each distinct text once. Of a question it is the passage and the question.
    """
    found = {
        split: list(dict.fromkeys(t for t in _split_texts(task, split) if t and t.strip()))
        for split in EVALUATION_SPLITS
    }
    return {split: texts for split, texts in found.items() if texts}


def item_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return what is learnt and judged as one, of each split that there is: ``"train"``, ``"dev"``, ``"test"``.

    That is a text; both texts of a pair joined, since the same aspect or hypothesis with another sentence is another
    item; and of a question its passage, since people ask the same of many passages.

    Args:
        task: A loaded task.

    Returns:
        Each distinct text once, in the order of the file.
    """
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        examples = getattr(task, split, ())
        texts = (_item_text(example, isinstance(task, QATask)) for example in examples)
        if kept := [text for text in dict.fromkeys(texts) if text.strip()]:
            found[split] = kept
    return found


def _item_text(example: Any, is_question: bool) -> str:
    if is_question:
        return str(example.passage)
    return str(example.text) if example.text_pair is None else f"{example.text}\n{example.text_pair}"


def _split_texts(task: Any, split: str = "train") -> Iterator[str | None]:
    for example in getattr(task, split, ()):
        yield from (example.text, example.passage if isinstance(task, QATask) else example.text_pair)
