"""`acclimate inspect leakage`: dev and test texts of tasks that also occur in a corpus or in train splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acclimate.corpus.contamination import MatchRules, find_contamination, summarize_contamination
from acclimate.errors import UserError
from acclimate.files import check_report_file, write_json
from acclimate.tasks.kinds import evaluation_texts, item_texts, load_task
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
    """Search a corpus, in one pass, and the train split of each task for the dev and test texts of the tasks.

    Args:
        corpus: Files, folders, globs or data sets of the hub, or a :class:`acclimate.corpus.Corpus`; None searches
            the train splits alone.
        tasks: Folders of labelled tasks, or loaded tasks.
        out: JSON file to write; None writes nothing.
        rules: Matching rules.
        text_column: Column that holds the text in tables and JSON lines.
        progress: Show a progress bar.

    Returns:
        ``documents`` and ``flagged``: number of documents read, and of those that contain a text; ``texts``: a row
        per task and split, with the counts of :class:`acclimate.corpus.contamination.ContaminationReport`;
        ``examples``; ``digests`` of the flagged documents, for :meth:`acclimate.corpus.Corpus.without`; ``train``:
        the same for the train split of each task, where the two texts of a pair are searched as one text and a
        question is represented by its passage; and ``rules``. Without a corpus only ``train`` and ``rules`` are
        present.

    Raises:
        UserError: If a source or a task cannot be read, two tasks have the same name, or no task has dev or test
            texts.
    """
    rules = rules or MatchRules()
    check_report_file(out)
    loaded = [load_task(task) if isinstance(task, str | Path) else task for task in tasks]
    if len({task.name for task in loaded}) < len(loaded):
        raise UserError("Two tasks have the same name; rename a folder, or inspect them one at a time.")
    groups = {(task.name, split): texts for task in loaded for split, texts in evaluation_texts(task).items()}
    if not groups:
        raise UserError("There are no dev or test texts to search for; give the folder of a task with --task.")
    report: dict[str, Any] = {"acclimate": __version__, "rules": asdict(rules)}
    if corpus is not None:
        source = as_corpus(corpus, text_column)
        numbered = {str(number): texts for number, texts in enumerate(groups.values())}
        found = find_contamination(source, numbered, rules, progress=progress)
        labels = {str(number): {"task": task, "split": split} for number, (task, split) in enumerate(groups)}
        report |= {
            "corpus": source.report.sources,
            **summarize_contamination(found.as_dict(), labels),
            "digests": found.digests,
        }
    report["train"] = [_search_train_split(task, rules, progress) for task in loaded]
    if out is not None:
        write_json(out, report)
    return report


def _search_train_split(task: Any, rules: MatchRules, progress: bool) -> dict[str, Any]:
    evaluated = item_texts(task)
    train = evaluated.pop("train", [])
    found = find_contamination(train, evaluated, rules, progress=progress)
    labels = {split: {"task": task.name, "split": split} for split in evaluated}
    return summarize_contamination(found.as_dict(), labels)
