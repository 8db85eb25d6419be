"""`acclimate inspect leakage`: dev and test texts of tasks that also occur in a corpus or in train splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from acclimate.base.errors import UserError, cut
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.data.contamination import MatchRules, find_contamination, summarize_contamination
from acclimate.data.documents import as_corpus
from acclimate.data.reading import reading_words, text_words
from acclimate.data.task_kinds import open_task
from acclimate.labs.inspection.options import InspectLeakageOptions
from acclimate.results.study import Measurements
from acclimate.tasks.groups import shared_groups
from acclimate.tasks.interfaces import evaluation_texts, item_texts


@verb(InspectLeakageOptions)
def inspect_leakage(options: InspectLeakageOptions) -> Measurements:
    """Search a corpus, in one pass, and the train split of each task for the dev and test texts of the tasks.

    Returns:
        ``documents`` and ``flagged``: number of documents read, and of those that contain a text; ``texts``: a row
        per task and split, with the counts of :class:`acclimate.data.contamination.ContaminationReport`;
        ``examples``; ``digests`` of the flagged documents, for :meth:`acclimate.data.Corpus.without`; ``train``:
        the same for the train split of each task, where the two texts of a pair are searched as one text and a
        question is represented by its passage, with the number of groups that also occur there; and
        ``rules``. Without a corpus only ``train`` and ``rules`` are
        present.

    Raises:
        UserError: If a source or a task cannot be read, two tasks have the same name, or no task has dev or test
            texts.
    """
    check_report_file(options.out)
    rules = MatchRules(options.near, options.contained, options.fewest_words)
    loaded = [open_task(task, options, text_column=None) for task in options.tasks]
    if len({task.name for task in loaded}) < len(loaded):
        raise UserError("Two tasks have the same name; rename a folder, or inspect them one at a time.")
    groups = {(task.name, split): texts for task in loaded for split, texts in evaluation_texts(task).items()}
    if not groups:
        raise UserError("There are no dev or test texts to search for; give the folder of a task with --task.")
    report: dict[str, Any] = {"acclimate": __version__, "rules": asdict(rules)}
    if options.corpus is not None:
        source = as_corpus(options.corpus, options)
        numbered = {str(number): texts for number, texts in enumerate(groups.values())}
        found = find_contamination(source, numbered, rules, progress=options.progress)
        labels = {str(number): {"task": task, "split": split} for number, (task, split) in enumerate(groups)}
        report |= {
            "corpus": source.report.sources,
            **summarize_contamination(found.as_dict(), labels),
            "digests": found.digests,
        }
    report["train"] = [_search_train_split(task, rules, options.progress) for task in loaded]
    if options.out is not None:
        write_json(options.out, report)
    searched = [("corpus", report)] if options.corpus is not None else []
    searched += [("train", found) for found in report["train"]]
    rows = [{"searched": where, **row} for where, found in searched for row in found["texts"]]
    lines = [
        f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} texts are in the {row['searched']}"
        f"{' split' if row['searched'] == 'train' else ''}"
        + (f", and {row['groups_in_train']:,} of {row['groups']:,} {row['group_name']}s" if "groups" in row else "")
        for row in rows
    ]
    return Measurements(report, lines, "Dev and test texts that were found", rows)


def show_leakage(report: Any, options: InspectLeakageOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect leakage`` prints."""
    if options.corpus:
        yield f"{report['flagged']:,} of {report['documents']:,} documents contain a dev or test text."
        yield from _describe_matches(report, "texts")
    for found in report["train"]:
        yield from _describe_matches(found, "texts in its own train split")
    yield from show_place("Full report", options.out)
    if options.corpus and report["flagged"]:
        words = [word for task in options.tasks for word in ("--task", task)]
        words += text_words("--corpus", options.corpus, column=options.text_column)
        words += [*reading_words(options), "--set", "leakage=remove", "--out", "runs/compare"]
        yield Next(["compare", "--model", "MODEL", *words], "to train without these documents")


def _describe_matches(found: dict[str, Any], what: str) -> Iterator[str]:
    for row in found["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and only compared with whole documents" if row["short"] else ""
        yield f"{row['task']}, {row['split']}: {row['found']:,} of {row['texts']:,} {what} ({kinds}){short}"
    for example in found["examples"][:3]:
        kind = {"exact": "is", "near": "nearly is", "contained": "is in"}[example["kind"]]
        text, document = (cut(" ".join(example[name].split()), 70) for name in ("text", "document"))
        yield f"  '{text}' {kind} '{document}'"


def _search_train_split(task: Any, rules: MatchRules, progress: bool) -> dict[str, Any]:
    evaluated = item_texts(task)
    train = evaluated.pop("train", [])
    found = find_contamination(train, evaluated, rules, progress=progress)
    labels = {split: {"task": task.name, "split": split, **shared_groups(task, split)} for split in evaluated}
    return summarize_contamination(found.as_dict(), labels)
