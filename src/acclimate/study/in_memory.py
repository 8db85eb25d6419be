"""A study that is described by the arguments of ``acclimate.compare``, whose texts and tasks may be in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any

from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import write_text
from acclimate.base.options import DATA, OUTPUT, Option, build, defaults, options
from acclimate.data.csv_reader import DEFAULT_COLUMN
from acclimate.data.documents import as_corpus
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.data.rows import NoLabel
from acclimate.study.draft import STUDY_FILE, draft_study, study_path, write_study
from acclimate.study.options import CompareOptions, InitOptions, StudyOptions
from acclimate.tasks.sources import read_object, refuse_broken

DATA_FOLDER = "data"
TEXTS = ("corpus", "heldout", "general")


def _text_or_file(what: str, default: str = "") -> Option:
    return Option(f"{what}: file, folder, glob or hf:NAME.", DATA, default=default, more="Or texts in memory.")


@options
class CompareCall(CompareOptions, LabelOptions, StudyOptions):
    """Options of :func:`acclimate.compare`: a study, or what describes one."""

    config: Annotated[
        Any,
        Option(
            "YAML or TOML file that describes the study.",
            DATA,
            default="a study of model, corpus and task",
            more="Or a study, as an object or a dictionary.",
            flag="STUDY",
        ),
    ] = None
    out: Annotated[str | Path, Option("Output directory.", OUTPUT, default="required")] = ""
    _: KW_ONLY
    corpus: Annotated[Any, _text_or_file("Domain text")] = ()
    heldout: Annotated[Any, _text_or_file("Domain text to measure on", "2 % of the documents of the corpus")] = ()
    general: Annotated[Any, _text_or_file("General text, to measure forgetting", "not measured")] = ()
    task: Annotated[
        Any,
        Option(
            "Labelled task: folder, file or hf:NAME.",
            DATA,
            default="only losses are compared",
            more="Or one in memory: a Dataset, a data frame, a list of rows, or one of these by split.",
        ),
    ] = ()


def find_study(given: CompareCall, out: Path) -> tuple[Any, Mapping[str, Any] | None]:
    """Return the study to run and the settings to change in it.

    A study that the arguments describe is written to ``out``, with the texts and the task that are in memory, so that
    it can be changed and run again.

    Raises:
        UserError: If there is no study or there are two, an argument is wrong, or ``out`` holds another study.
    """
    names = {**defaults(StudyOptions), **defaults(LabelOptions)}
    described = {name: value for name in names if not _is_default(value := getattr(given, name), names[name])}
    if given.config is not None:
        if described:
            raise UserError(f"The study already describes the models and texts: remove {', '.join(described)}, or it.")
        return given.config, given.settings
    if missing := [name for name in ("model", "corpus") if name not in described]:
        raise UserError(f"Give a study, or what describes one: {' and '.join(missing)} is missing.")
    drafted = place_data(described, out)
    return write_study(draft_study(drafted, given.settings), study_path(drafted, out)), None


def place_data(described: Mapping[str, Any], out: Path) -> InitOptions:
    """Return the options of a study; texts and a task in memory are written to ``out/data``.

    Args:
        described: Options that describe a study, by name; values that are empty or None count as not given.
        out: Folder of the study.

    Raises:
        UserError: If an option is wrong, or the folder holds other data.
    """
    given = {name: value for name, value in described.items() if not _is_default(value, ())}
    for name in TEXTS:
        if name in given:
            column = given.get("text_column", DEFAULT_COLUMN)
            given[name] = place_text(given[name], out / DATA_FOLDER / f"{name}.jsonl", column)
    if "task" in given:
        given["task"] = _place_task(given["task"], out / DATA_FOLDER, given.get("label_column"))
    return build(InitOptions, file=out / STUDY_FILE, **given)


def _is_default(value: Any, default: Any) -> bool:
    return value is None or (type(value) is type(default) and value == default)


def place_text(value: Any, file: Path, column: str = DEFAULT_COLUMN) -> Any:
    """Return names of files and datasets as they are; write texts in memory to a file."""
    corpus = as_corpus(value, TextOptions(text_column=column))
    if corpus.report.sources != ["memory"]:
        return value
    placed = _write_rows(({"text": text} for text in corpus), file)
    return placed if column == DEFAULT_COLUMN else f"{placed}:text"


def _place_task(value: Any, folder: Path, label_column: str | None) -> Any:
    """Return names of files and datasets as they are; write a task in memory to a file, or to a folder of splits."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if all(isinstance(one, str | Path) for one in several):
        return value
    if hasattr(value, "task_kind"):
        raise UserError("A loaded task cannot be compared on: give the rows or the files that it was made from.")
    tables = read_object(value, "task", label_column)
    refuse_broken(tables)
    for split, table in tables.items():
        plain = [{name: _plain(cell) for name, cell in row.items()} for _, row in table.rows]
        rows = [row for row in plain if not any(isinstance(cell, NoLabel) for cell in row.values())]
        if len(rows) < len(plain):
            warn_once(
                f"Rows of the {split} split without a label (-1), which are left out: {len(plain) - len(rows):,}."
            )
        alone = tables.keys() == {"train"}
        file = _write_rows(rows, folder / "task.jsonl" if alone else folder / "task" / f"{split}.jsonl")
    return file if alone else file.parent


def _plain(cell: Any) -> Any:
    """Return a cell as JSON has it: None instead of NaN."""
    return None if isinstance(cell, float) and cell != cell else cell


def _write_rows(rows: Iterable[Mapping[str, Any]], file: Path) -> Path:
    """Write rows as JSON lines, or keep the file that has them."""
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UserError(f"'{file}' holds other data than those given: choose another output directory, or delete it.")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_text(file, text)
