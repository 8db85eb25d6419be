"""The texts of a task without its labels, for task-adaptive pre-training and for finding contamination."""

from __future__ import annotations

from acclimate.tasks.kinds import LabelledTask, find_task_kind
from acclimate.tasks.readers import SPLITS
from acclimate.training.inputs import task_texts

EVALUATION_SPLITS = ("dev", "test")
"""The splits that a model is evaluated on, or selected with."""


def task_text(task: LabelledTask) -> list[str]:
    """Return the texts of the train split, in the order of the file, each distinct text once.

    The two texts of a pair are separate documents, and so are a question and its passage: only the end task joins
    them. Nothing of dev or test is included, so a model that has read the texts can still be evaluated on these.

    Args:
        task: A loaded task.

    Returns:
        Texts that are not empty.
    """
    return task_texts(task)


def evaluation_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return the texts on which a model is evaluated, for each existing split: ``"dev"``, ``"test"``.

    Args:
        task: A loaded task.

    Returns:
        Each distinct text once, in the order of the file; for a question both the question and its passage.
    """
    found = {split: task_texts(task, split) for split in EVALUATION_SPLITS}
    return {split: texts for split, texts in found.items() if texts}


def item_texts(task: LabelledTask) -> dict[str, list[str]]:
    """Return what identifies the items of each existing split: ``"train"``, ``"dev"``, ``"test"``.

    For a text this is the text itself. For a pair it is both texts, joined, since the same aspect or hypothesis with
    another sentence is another item. For a question it is the passage, since the same question can be asked about many
    passages.

    Args:
        task: A loaded task.

    Returns:
        Each distinct text once, in the order of the file.
    """
    kind = find_task_kind(task)
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        texts = dict.fromkeys(kind.item_text(example) for example in getattr(task, split, ()))
        if kept := [text for text in texts if text.strip()]:
            found[split] = kept
    return found
