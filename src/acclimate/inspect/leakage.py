"""`acclimate inspect leakage`: which of the texts that tasks are judged on stand in a corpus or in train splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acclimate.corpus.contamination import MatchRules, find_contamination, summarize_contamination
from acclimate.errors import UserError
from acclimate.files import write_json
from acclimate.tasks.kinds import load_task
from acclimate.tasks.text import evaluation_texts, item_texts
from acclimate.training.inputs import TextInput, as_corpus
from acclimate.version import __version__


def inspect_leakage(
    corpus: TextInput | None,
    tasks: Sequence[Any],
    out: str | Path | None = None,
    *,
    rules: MatchRules | None = None,
    text_column: str = "text",
    progress: bool = True,
) -> dict[str, Any]:
    """Look for the dev and test texts of tasks in a corpus, reading it once, and in the train split of each task.

    Args:
        corpus: Files, folders, globs or data sets of the hub, or a :class:`acclimate.corpus.Corpus`; None looks in
            train splits alone.
        tasks: Folders of labelled tasks, or loaded ones.
        out: JSON file to write; None writes nothing.
        rules: What counts as found.
        text_column: Where the text is in tables and JSON lines.
        progress: Show a bar.

    Returns:
        ``documents`` and ``flagged``, how many were read and how many hold a text; ``texts``, a row for each task and
        split, as :class:`acclimate.corpus.contamination.ContaminationReport` counts; ``examples``; ``digests`` of the
        documents, for
        :meth:`acclimate.corpus.Corpus.without`; ``train``, the same of the train split of each task, whose rows count
        the two texts of a pair as one, and of a question its passage; and the ``rules``. Without a
        corpus there are ``train`` and ``rules`` alone.

    Raises:
        UserError: If a source or a task cannot be read, two tasks have the same name, or none has a text.
    """
    rules = rules or MatchRules()
    loaded = [load_task(task) if isinstance(task, str | Path) else task for task in tasks]
    if len({task.name for task in loaded}) < len(loaded):
        raise UserError("Two of the tasks have the same name; look at them one by one, or rename a folder.")
    groups = {(task.name, split): texts for task in loaded for split, texts in evaluation_texts(task).items()}
    if not groups:
        raise UserError("There is no text to look for; give the folder of a task with --task.")
    report: dict[str, Any] = {"acclimate": __version__, "rules": asdict(rules)}
    if corpus is not None:
        source = as_corpus(corpus, text_column)
        numbered = {str(number): texts for number, texts in enumerate(groups.values())}
        found = find_contamination(source, numbered, rules, progress=progress)
        places = {str(number): {"task": task, "split": split} for number, (task, split) in enumerate(groups)}
        report |= {
            "corpus": source.report.sources,
            **summarize_contamination(found.as_dict(), places),
            "digests": found.digests,
        }
    report["train"] = [_in_train(task, rules, progress) for task in loaded]
    if out is not None:
        write_json(out, report)
    return report


def _in_train(task: Any, rules: MatchRules, progress: bool) -> dict[str, Any]:
    judged = item_texts(task)
    train = judged.pop("train", [])
    found = find_contamination(train, judged, rules, progress=progress)
    return summarize_contamination(found.as_dict(), {split: {"task": task.name, "split": split} for split in judged})
