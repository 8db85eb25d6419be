"""Which text an adaptation reads: that of a domain, or that of the train split of a labelled task."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.training.method import Method

TextInput = str | Path | Iterable[str | Path] | Corpus
TASK_EPOCHS = 100
"""Passes over the text of a task unless told otherwise (Gururangan et al., ACL 2020, and the TAPTER paper)."""


def as_corpus(text: TextInput, text_column: str = "text") -> Corpus:
    """Return what the user names as a corpus."""
    return text if isinstance(text, Corpus) else Corpus(text, text_column=text_column)  # type: ignore[arg-type]


def open_task(task: Any) -> Any:
    """Return a task: as it is, or read from its folder.

    Tasks live on a floor above this one, so their room is looked up when a task is asked for, as methods are.
    """
    return importlib.import_module("acclimate.tasks").load_task(task) if isinstance(task, str | Path) else task


def task_corpus(task: Any) -> Corpus:
    """Return the texts of the train split of a task, never those of dev or test."""
    return Corpus.of(importlib.import_module("acclimate.tasks.text").task_text(task))


def resolve_texts(method: Method, corpus: TextInput | None, task: Any, text_column: str) -> dict[str, Corpus]:
    """Return the ``"domain"`` text and the ``"task"`` text that a method reads; most read one of them.

    Args:
        method: The method.
        corpus: What the user gave as text, or None.
        task: A loaded task, or None.
        text_column: Where the text is in tables and JSON lines.

    Raises:
        UserError: If a text or the task is missing, or it is not clear which text is meant.
    """
    name, stages = method.name, method.stages()
    if method.needs_task and task is None:
        raise UserError(f"Method '{name}' needs a labelled task; give its folder with --task.")
    if corpus is None and task is None:
        raise UserError("There is no text to adapt to; give --corpus, or --task to read the train split of a task.")
    if stages and corpus is None:
        raise UserError(f"Method '{name}' reads the text of a domain as well; give it with --corpus.")
    if method.reads == "task" and corpus is not None and task is not None:
        raise UserError(
            f"Method '{name}' reads one text: leave out --corpus to read that of the task, or --task to read the "
            "corpus; 'dapt+tapt' reads both, one after the other."
        )
    texts: dict[str, Corpus] = {}
    if corpus is not None:
        texts["domain"] = as_corpus(corpus, text_column)
    if corpus is None or any(stage.reads == "task" for stage in stages):
        texts["task"] = task_corpus(task)
    return texts
