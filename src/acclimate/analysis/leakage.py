"""`acclimate inspect leakage`: which of the texts that tasks are judged on stand in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acclimate.corpus.leakage import Leakage, find_leakage
from acclimate.corpus.text_index import Rules
from acclimate.errors import UserError
from acclimate.files import write_json
from acclimate.tasks.kinds import load_task
from acclimate.tasks.text import judged_texts
from acclimate.training.texts import Text, as_corpus
from acclimate.version import __version__


def inspect_leakage(
    corpus: Text,
    tasks: Sequence[Any],
    out: str | Path | None = None,
    *,
    rules: Rules | None = None,
    text_column: str = "text",
    progress: bool = True,
) -> dict[str, Any]:
    """Look for the dev and test texts of tasks in a corpus, reading it once.

    Args:
        corpus: Files, folders, globs or data sets of the hub, or a :class:`acclimate.corpus.Corpus`.
        tasks: Folders of labelled tasks, or loaded ones.
        out: JSON file to write; None writes nothing.
        rules: What counts as found.
        text_column: Where the text is in tables and JSON lines.
        progress: Show a bar.

    Returns:
        ``documents`` and ``flagged``, how many were read and how many hold a text; ``texts``, a row for each task and
        split, as :class:`acclimate.corpus.leakage.Leakage` counts; ``examples``; ``digests`` of the documents, for
        :meth:`acclimate.corpus.Corpus.without`; and the ``rules``.

    Raises:
        UserError: If a source or a task cannot be read, two tasks have the same name, or none has a text.
    """
    rules = rules or Rules()
    loaded = [load_task(task) if isinstance(task, str | Path) else task for task in tasks]
    if len({task.name for task in loaded}) < len(loaded):
        raise UserError("Two of the tasks have the same name; look at them one by one, or rename a folder.")
    groups = {(task.name, split): texts for task in loaded for split, texts in judged_texts(task).items()}
    if not groups:
        raise UserError("There is no text to look for; give the folder of a task with --task.")
    source = as_corpus(corpus, text_column)
    numbered = {str(number): texts for number, texts in enumerate(groups.values())}
    found = find_leakage(source, numbered, rules, progress=progress)
    report = {"acclimate": __version__, "corpus": source.report.sources, "rules": asdict(rules)}
    report |= _told(found, list(groups))
    if out is not None:
        write_json(out, report)
    return report


def _told(found: Leakage, names: list[tuple[str, str]]) -> dict[str, Any]:
    """Replace the numbers of groups by task and split."""
    places = {str(number): {"task": task, "split": split} for number, (task, split) in enumerate(names)}
    return {
        "documents": found.documents,
        "flagged": found.flagged,
        "texts": [{**places[group], **counts} for group, counts in found.groups.items()],
        "examples": [
            {**places[example["group"]], **{name: value for name, value in example.items() if name != "group"}}
            for example in found.examples
        ],
        "digests": found.digests,
    }
