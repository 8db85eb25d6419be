"""The text of a task, without its labels: what task-adaptive pre-training learns from."""

from __future__ import annotations

from acclimate.tasks.data import Task


def task_text(task: Task) -> list[str]:
    """Return the texts of the train split, in the order of the file, each distinct text once.

    The two texts of a pair are documents of their own: what joins them is for the classifier to say. Nothing of dev
    or test is in it, so that a model that has read it can still be measured on them.

    Args:
        task: A loaded task.

    Returns:
        Texts that are not empty.
    """
    texts = (text for example in task.train for text in (example.text, example.text_pair))
    return list(dict.fromkeys(text for text in texts if text and text.strip()))
