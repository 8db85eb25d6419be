"""`acclimate inspect leakage`: texts of benchmarks, and dev and test texts of tasks, that also occur in a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from typing import Any

from acclimate.base.errors import UserError, cut
from acclimate.base.files import (
    atomic_folder,
    check_replaceable,
    check_report_file,
    check_writable,
    record_files,
    write_json,
)
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.data.contamination import (
    ContaminationSearch,
    Match,
    MatchRules,
    find_contamination,
    summarize_contamination,
)
from acclimate.data.documents import format_count
from acclimate.data.reading import reading_words, text_words
from acclimate.data.task_kinds import open_task
from acclimate.labs.inspection.leakage_sources import Items, open_corpora, read_benchmark, task_items
from acclimate.labs.inspection.leakage_tables import Tally, write_tables
from acclimate.labs.inspection.options import InspectLeakageOptions
from acclimate.results.study import Measurements
from acclimate.tasks.groups import shared_groups
from acclimate.tasks.interfaces import item_texts

MANIFEST = "leakage.json"


@verb(InspectLeakageOptions)
def inspect_leakage(options: InspectLeakageOptions) -> Measurements:
    """Search corpora, each in one pass, for texts of benchmarks, and the train split of each task for its own texts.

    Returns:
        ``documents`` and ``flagged``: number of documents read, and of those that contain a text; ``texts``: a row
        per benchmark or task and split, with the counts of
        :class:`acclimate.data.contamination.ContaminationReport`; ``corpora``: ``documents``, ``flagged`` and what was
        left out of each corpus; ``benchmarks``: a row per benchmark, split and corpus, with the items of which a text
        was found, their share with its 95 % interval, and the documents with such a text; ``examples``; ``digests`` of
        the flagged documents, for :meth:`acclimate.data.Corpus.without`; ``train``: the same as ``texts`` for the
        train split of each task, where the two texts of a pair are searched as one text and a question is
        represented by its passage, with the number of groups that also occur there; and ``rules``. Without a corpus
        only ``train`` and ``rules`` are present.

    Raises:
        UserError: If a source or a task cannot be read, two tasks or benchmarks have the same name, or there is no
            text to search for or nothing to search.
    """
    check_report_file(options.out)
    for folder, what in ((options.write_clean, "clean corpora"), (options.tables, "tables of contamination")):
        check_replaceable(folder, MANIFEST, what)
        check_writable(folder)
    rules = MatchRules(options.near, options.contained, options.fewest_words)
    loaded = [open_task(task, options, text_column=None) for task in options.tasks]
    read = [task_items(task) for task in loaded]
    read += [read_benchmark(source, options.benchmark_columns, options) for source in options.benchmarks]
    if len({name for name, _ in read}) < len(read):
        raise UserError("Two tasks or benchmarks have the same name; rename one, or inspect them one at a time.")
    items = {(name, split): own for name, splits in read for split, own in splits.items()}
    if not items:
        raise UserError(
            "There are no texts to search for; give a task with dev or test texts with --task, or the texts of a "
            "benchmark with --benchmark."
        )
    if options.corpus is None and (options.benchmarks or options.write_clean or options.tables):
        raise UserError("There is no corpus to search; give one with --corpus.")
    report: dict[str, Any] = {"acclimate": __version__, "rules": asdict(rules)}
    if options.corpus is not None:
        report |= _search_corpora(items, rules, options)
    report["train"] = [_search_train_split(task, rules, options.progress) for task in loaded]
    if options.out is not None:
        write_json(options.out, report)
    searched = [("corpus", report)] if options.corpus is not None else []
    searched += [("train", found) for found in report["train"]]
    rows = [{"searched": where, **row} for where, found in searched for row in found["texts"]]
    lines = [
        f"{_place(row)}: {row['found']:,} of {row['texts']:,} texts are in the {row['searched']}"
        f"{' split' if row['searched'] == 'train' else ''}"
        + (f", and {row['groups_in_train']:,} of {row['groups']:,} {row['group_name']}s" if "groups" in row else "")
        for row in rows
    ]
    return Measurements(report, lines, "Dev and test texts that were found", rows)


def _search_corpora(
    items: Mapping[tuple[str, str], Items], rules: MatchRules, options: InspectLeakageOptions
) -> dict[str, Any]:
    """Search all corpora; write those without the flagged documents, and the tables, whole or not at all."""
    corpora = open_corpora(options)
    search = ContaminationSearch(
        {str(number): list(chain.from_iterable(own)) for number, own in enumerate(items.values())}, rules
    )
    labels = {str(number): {"task": name, "split": split} for number, (name, split) in enumerate(items)}
    reports = []
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clean, tables = (
            stack.enter_context(atomic_folder(folder)) if folder is not None else None
            for folder in (options.write_clean, options.tables)
        )
        tally = stack.enter_context(Tally(items, search.index, tables))
        for name, corpus in corpora.items():
            with ExitStack() as own:
                file = own.enter_context((clean / f"{name}.jsonl").open("w", encoding="utf-8")) if clean else None
                tally.start(name, corpus.report.sources)

                def note(document: str, source: int, hits: Mapping[int, Match], file: Any = file) -> None:
                    tally.count(document, source, hits)
                    if file and not hits:
                        file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")

                found = search.run(corpus.with_sources(), note, progress=options.progress)
            left = {kind: getattr(corpus.report, kind) for kind in ("duplicates", "empty", "broken")}
            rows.append({"corpus": name, "documents": found.documents, "flagged": found.flagged, **left})
            reports.append(found)
        found = search.merge(reports)
        report = {
            "corpus": [source for corpus in corpora.values() for source in corpus.report.sources],
            **summarize_contamination(found.as_dict(), labels),
            "corpora": rows,
            "benchmarks": tally.rows(),
            "digests": found.digests,
        }
        tally.close()
        if tables:
            write_tables(tables, report["benchmarks"])
        for folder in filter(None, (clean, tables)):
            write_json(folder / MANIFEST, {"acclimate": __version__, "rules": asdict(rules), "corpora": rows})
            record_files(folder, MANIFEST)
    return report


def show_leakage(report: Any, options: InspectLeakageOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect leakage`` prints."""
    if options.corpus is not None:
        what = "a dev or test text" if not options.benchmarks else "a text of a benchmark"
        yield f"{report['flagged']:,} of {report['documents']:,} documents contain {what}."
        for row in report["corpora"] if len(report["corpora"]) > 1 else ():
            yield f"{row['corpus']}: {row['flagged']:,} of {row['documents']:,} documents"
        yield from _describe_matches(report, "texts")
    for found in report["train"]:
        yield from _describe_matches(found, "texts in its own train split")
    kept = format_count(report.get("documents", 0) - report.get("flagged", 0), "document")
    yield from show_place(f"Clean corpora, {kept}", options.write_clean)
    yield from show_place("Tables, and the list of flagged documents", options.tables)
    yield from show_place("Full report", options.out)
    if options.corpus is not None and options.tasks and report["flagged"]:
        words = [word for task in options.tasks for word in ("--task", task)]
        words += text_words("--corpus", options.corpus, column=options.text_column)
        words += [*reading_words(options), "--set", "leakage=remove", "--out", "runs/compare"]
        yield Next(["compare", "--model", "MODEL", *words], "to train without these documents")


def _place(row: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (row["task"], row["split"])))


def _describe_matches(found: dict[str, Any], what: str) -> Iterator[str]:
    for row in found["texts"]:
        kinds = ", ".join(f"{row[kind]:,} {kind}" for kind in ("exact", "near", "contained"))
        short = f"; {row['short']:,} are short, and only compared with whole documents" if row["short"] else ""
        yield f"{_place(row)}: {row['found']:,} of {row['texts']:,} {what} ({kinds}){short}"
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
