"""The rows of a labelled task in every form that people have, and the columns that hold text and labels.

The forms are a folder with a file per split, one file, a dataset of the Hugging Face Hub (``hf:NAME``), and objects
in memory. Nothing is guessed silently: a column or a split that is found by its name, and a split that is not used,
is reported in one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from acclimate.base.errors import UserError, unknown_name_error, warn_once
from acclimate.data.csv_reader import TEXT_NAMES, name_parts, propose_join
from acclimate.data.documents import table_rows
from acclimate.data.opening import ENCODED, EXCEL, TABLES, detect_format
from acclimate.data.reading import ReadingOptions
from acclimate.data.rows import (
    LONE_SURROGATE,
    LeftOut,
    Row,
    RowError,
    as_row,
    class_names,
    column_names,
    edit_rows,
    name_classes,
    read_rows,
)
from acclimate.data.sources import is_metadata
from acclimate.tasks.groups import find_grouping
from acclimate.tasks.kinds.classification.labels import plain_or_given
from acclimate.tasks.readers import (
    FORMATS,
    SPLITS,
    advise_conversion,
    find_saved_files,
    find_split_files,
    report_kind,
    report_unused,
)
from acclimate.tasks.values import (
    MIN_WORDS,
    are_classes,
    are_texts,
    cells,
    find_tags,
    holds_content,
    label_like,
    mean_words,
    tags_error,
)

COLUMNS = ("text", "label")
"""The columns that every row of a classification task has, unless others are given or inferred."""
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2")),
    *(("question", "sentence"), ("question", "context"), ("text_a", "text_b"), ("sentence_a", "sentence_b")),
)
LABEL_NAMES = (
    *("label", "labels", "sentiment", "class", "category", "target", "intent", "topic", "stance", "polarity"),
    *("rating", "stars", "gold", "gold_label", "emotion"),
)
"""Usual names of columns, in lower case, in order of how common they are; the order has no other meaning."""
SCORE_NAMES = ("score", "similarity", "similarity_score", "relatedness", "value")
"""Usual names of columns of numbers; other kinds of tasks ignore these columns."""
ENDINGS = (*FORMATS, EXCEL)
CONVERSATION_NAMES = {"messages", "conversations", "instruction", "chosen", "rejected", "completion"}
"""Columns of conversations, instructions and preferences, in lower case."""
FEW_ROWS = 20
"""With fewer rows than this, values do not show that labels are no classes."""
HEADER_ROWS = 10
"""First rows among which a header can be, under other lines."""
SPLIT_COLUMN = "split"
OTHER_COLUMNS = ("document", "id")
"""Columns that are read where they exist."""


@dataclass(frozen=True)
class Table:
    """The rows of one split."""

    rows: list[Row]
    broken: list[RowError] = field(default_factory=list)
    """Rows that could not be parsed."""


Tables = dict[str, Table]
"""A table per split that exists."""


class Selected(NamedTuple):
    """The rows of all splits with columns of standard names, their groups by location, and what a group is."""

    rows: dict[str, list[Row]]
    groups: dict[str, str | None]
    group_name: str
    left: LeftOut


def start_left_out(tables: Mapping[str, Table], name: str, options: ReadingOptions) -> LeftOut:
    """Return a collection of the rows of a task that cannot be used, with those that could not be parsed."""
    return LeftOut(name, options.strict, {split: table.broken for split, table in tables.items()})


def read_tables(source: Any, name: str, options: ReadingOptions) -> Tables:
    """Return the rows of each split with their own columns.

    Args:
        source: A folder, a file, or an object.
        name: Name of the task, for messages.
        options: The encoding of files.

    Raises:
        UserError: If the source cannot be read or has no train rows.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        tables = _read_folder(path, options) if path.is_dir() else {"train": _read_files([path], options)}
        _report_splits(name, _drop_hidden(tables, options.label_column))
    else:
        tables = read_object(source, name, options.label_column)
    if tables.keys() == {"train"}:
        tables = _divide(tables["train"], name)
    if not tables["train"].rows:
        refuse_broken(tables)
        raise UserError(f"The task '{name}' has no train rows.")
    return tables


def select_columns(
    tables: Tables, name: str, kind: str, options: ReadingOptions, labels: Collection[str] = LABEL_NAMES
) -> Selected:
    """Return the rows of all splits, with the columns ``text``, ``label`` and perhaps ``text_pair``, and their groups.

    Args:
        tables: The rows as they were read.
        name: Name of the task, for messages.
        kind: Its kind, for messages.
        options: The columns, where they are not to be inferred.
        labels: Usual names of the column of the labels.

    Raises:
        UserError: If the columns cannot be determined.
    """
    rows = tables["train"].rows
    names = column_names(rows)
    chosen = choose_columns(names, options, name, rows[0][0], labels, rows)
    if options.text_column is options.label_column is None and "text_pair" not in chosen:
        _check_header(chosen, labels, rows)
    if options.label_column is None:
        if tags := find_tags(rows):
            raise tags_error(rows[0][0], f"the values of '{tags}'")
        _check_label(chosen, rows)
    parts = {part: chosen[part] for part in ("text", "text_pair", "label") if part in chosen}
    is_single = chosen["text"] not in ("text", options.text_column) and "text_pair" not in chosen
    hint = propose_join(chosen["text"], names) if is_single else ""
    report_kind(name, kind, {part.replace("_", " "): column for part, column in parts.items()}, hint)
    texts = [chosen["text"], chosen.get("text_pair")]
    tables = {split: replace(table, rows=edit_rows(table.rows, texts, options)) for split, table in tables.items()}
    read = {split: tables[split].rows if split in tables else [] for split in SPLITS}
    grouping = find_grouping(name, read, options.group_column, chosen.values())
    report_unused(name, chain(*read.values()), (*chosen.values(), *grouping.columns))
    left = start_left_out(tables, name, options)
    return Selected(
        {split: _rename(tables[split], chosen, left, split) if split in tables else [] for split in SPLITS},
        {where: grouping.of(row) for found in read.values() for where, row in found},
        grouping.name,
        left,
    )


def _check_header(chosen: Mapping[str, str], label_names: Collection[str], rows: Sequence[Row]) -> None:
    """Check that columns without usual names have names, and not the values of a row.

    Raises:
        UserError: If a column is called like one of its labels, or a row has the usual names of the columns.
    """
    text, label = chosen["text"], chosen.get("label")
    if label is None or text.lower() in TEXT_NAMES or label.lower() in label_names:
        return
    header = next(
        (
            where
            for where, row in rows[:HEADER_ROWS]
            if str(row.get(text)).strip().lower() in TEXT_NAMES and str(row.get(label)).strip().lower() in label_names
        ),
        None,
    )
    if header is not None:
        raise UserError(f"{header} has the names of the columns; remove the lines above it.")
    if label in {str(row.get(label)).strip() for _, row in rows}:
        raise UserError(
            f"{rows[0][0]}: the column of the labels is called '{label}', as one of the labels is, so the file seems "
            "to have no header; add a first line with names, such as text,label."
        )


def _divide(table: Table, name: str) -> Tables:
    """Return the splits of rows that name theirs in a column ``split``; without such a column all rows are train."""
    columns = {column for _, row in table.rows for column in row}
    column = next((column for column in sorted(columns) if column.lower() == SPLIT_COLUMN), None)
    if column is None:
        return {"train": table}
    split_of = {alias: split for split, aliases in SPLITS.items() for alias in aliases}
    found: dict[str, list[Row]] = {}
    broken = list(table.broken)
    for where, row in table.rows:
        if split := split_of.get(str(row.get(column)).strip().lower()):
            found.setdefault(split, []).append((where, row))
        else:
            what = f"the column '{column}' is {row.get(column)!r:.40}; rename the column if it is something else"
            broken.append(RowError(where, "that are not of train, dev or test", what))
    if "train" not in found:
        hint = f" {broken[0]}" if broken else ""
        raise UserError(f"No row of the task '{name}' has 'train' in the column '{column}'.{hint}")
    if "test" not in found and len(broken) > len(table.broken):
        raise UserError(
            f"No row of the task '{name}' has 'test' in the column '{column}', but some have another value; write "
            f"train, dev and test, or rename the column. {broken[len(table.broken)]}"
        )
    counts = ", ".join(f"{len(rows):,} {split}" for split, rows in found.items())
    warn_once(f"The task '{name}' has its splits in the column '{column}': {counts}.")
    return {split: Table(rows, broken if split == "train" else []) for split, rows in found.items()}


def choose_columns(
    names: Collection[str],
    options: ReadingOptions,
    task: str,
    where: str,
    label_names: Collection[str] = LABEL_NAMES,
    rows: Sequence[Row] = (),
) -> dict[str, str]:
    """Return the names of the columns ``text``, ``label`` and perhaps ``text_pair``.

    Columns with these very names are used. Otherwise a column with one of the usual names is, if there is exactly one
    of which the values fit; else the only column of which the values fit.

    Args:
        names: The columns of the train split.
        options: The columns that the user named.
        task: Name of the task, for messages.
        where: The location of the first row, for messages.
        label_names: Usual names of the column of the labels; without any, a label is read if its column is named.
        rows: The rows of the train split; without any, names alone count.

    Raises:
        UserError: If a named column does not exist, or the choice is not clear.
    """
    given = {"text": options.text_column, "text_pair": options.pair_column, "label": options.label_column}
    for column, value in given.items():
        if value is not None and value not in names:
            parts = name_parts(value)
            wrong = next((part for part in parts if part not in names), value) if {*parts} & {*names} else value
            raise unknown_name_error(f"column of the task '{task}' for '{column}'", wrong, names)
    chosen = {column: value for column, value in given.items() if value is not None}
    for column in ("text", "text_pair", "label"):
        if column in names and column not in chosen and column not in chosen.values():
            chosen[column] = column
    lower = {name: name.lower() for name in names if name not in chosen.values()}
    if "text" not in chosen:
        pairs = [
            {"text": one, "text_pair": two}
            for first, second in PAIR_NAMES
            for one in lower
            for two in lower
            if (lower[one], lower[two]) == (first, second) and "text_pair" not in chosen
        ]
        in_pairs = {name for pair in pairs for name in pair.values()}
        alone = [{"text": name} for name in lower if lower[name] in TEXT_NAMES and name not in in_pairs]
        fitting = [name for name in lower if lower[name] not in LABEL_NAMES and are_texts(cells(rows, name))]
        chosen |= _only([*pairs, *alone], fitting, "text", names, where, rows)
    if "label" not in chosen and label_names:
        left = [name for name in lower if name not in chosen.values()]
        labels = [{"label": name} for name in left if lower[name] in label_names]
        fitting = label_like(rows, left)
        if not labels and (whole := next((name for name in fitting if lower[name] in SCORE_NAMES), None)):
            raise UserError(
                f"{where}: '{whole}' holds whole numbers, which can be classes or a scale. For classes, give "
                f"--label-column {whole}; for a scale, --task-kind regression."
            )
        is_certain = not holds_content(rows, [name for name in left if name not in fitting])
        chosen |= _only(labels, fitting, "label", names, where, rows, is_certain)
    return chosen


def _only(
    usual: list[dict[str, str]],
    fitting: Sequence[str],
    column: str,
    names: Collection[str],
    where: str,
    rows: Sequence[Row],
    is_certain: bool = True,
) -> dict[str, str]:
    """Return the only candidate for a column.

    Args:
        usual: Columns with a usual name.
        fitting: Columns of which the values fit.
        column: What is chosen: ``text`` or ``label``.
        names: All columns.
        where: The location of the first row.
        rows: The rows.
        is_certain: Whether a column without a usual name may be chosen.
    """
    candidates = usual if usual else [{column: name} for name in fitting]
    if len(candidates) > 1:
        candidates = [one for one in candidates if one[column] in fitting] or candidates
    if len(candidates) == 1 and (usual or is_certain):
        return candidates[0]
    if tags := find_tags(rows):
        raise tags_error(where, f"the values of '{tags}'")
    listed = ", ".join(list(names)[:20]) or "none"
    several = " or ".join(f"'{candidate[column]}'" for candidate in candidates)
    alone = column == "text" and len(candidates) > 1 and all(one.keys() == {"text"} for one in candidates)
    what = f"the {column} can be in {several}" if candidates else f"no column '{column}'"
    hint = f" Both are read by --text-column {','.join(one[column] for one in candidates)}." if alone else ""
    known = {name.lower() for name in names}
    if {"tokens", "words"} & known:
        hint = " If the rows mark entities, tokens and tags must be lists of the same length."
    if CONVERSATION_NAMES & known:
        hint = " Conversations, instructions and preferences are text to adapt to (adapt --chat), not a task; "
        hint += "answers to write are one with --task-kind generation."
    if mean_words(list(names)) > MIN_WORDS:
        hint += " If the first row is no header, add one with the names of the columns."
    elif candidates and column == "text":
        hint += " The second text of a pair is named with --pair-column."
    raise UserError(
        f"{where}: {what}. The columns are: {listed}; name the right one with --{column}-column ({column}_column in "
        f"Python and study files).{hint}"
    )


def _check_label(chosen: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Check that a label that was found by its name does not hold texts.

    Raises:
        UserError: If it does; the message names the other readings.
    """
    text, label = chosen["text"], chosen["label"]
    values = []
    for value in map(plain_or_given, cells(rows, label)):
        values += value if isinstance(value, list) else [value]
    if len(values) < FEW_ROWS or not are_texts(values) or 2 * len(set(map(str, values))) < len(values):
        return
    swapped = are_classes(cells(rows, text))
    raise UserError(
        f"{rows[0][0]}: '{label}' holds texts of {mean_words(values):.0f} words, most of them different, which are no "
        + (
            f"classes, and '{text}' holds classes: if they are exchanged, give --text-column {label} --label-column "
            f"{text}."
            if swapped
            else f"classes. If they are to be found by '{text}', give --task-kind retrieval --text-column {text} "
            f"--pair-column {label}; else name the column of the label with --label-column."
        )
    )


def _rename(table: Table, chosen: Mapping[str, str], left: LeftOut, split: str) -> list[Row]:
    """Return rows in which the chosen columns have their standard names; other rows remain as they are."""
    for column, name in chosen.items():
        if table.rows and column != "text_pair" and not any(name in row for _, row in table.rows):
            where, row = table.rows[0]
            raise UserError(f"{where}: no column '{name}'. The columns are: {', '.join(map(str, row)) or 'none'}.")
    if all(column == name for column, name in chosen.items()):
        return table.rows

    def rename(found: Row) -> Row:
        where, row = found
        renamed = {column: row[name] for column, name in chosen.items() if name in row}
        used = {*chosen.values(), *renamed}
        return where, renamed | {name: row[name] for name in OTHER_COLUMNS if name in row and name not in used}

    return left.read(split, table.rows, rename)


def _read_files(files: list[Path], options: ReadingOptions) -> Table:
    """Return the rows of a file, or of the parts of one."""
    for file in files:
        if not file.name.lower().endswith(ENDINGS):
            formats = ", ".join(TABLES)
            raise UserError(
                f"'{file}' is not a table; a task needs {formats}, or a folder of these.{advise_conversion([file])}"
            )
        if options.encoding and detect_format(file) not in ENCODED:
            raise UserError(f"'{file}' has the encoding of its format; remove the encoding '{options.encoding}'.")
    # The delimiter of a table is the one that separates these columns.
    columns = (options.text_column or COLUMNS[0], options.label_column or COLUMNS[1])
    broken: list[RowError] = []
    rows = [row for file in files for row in read_rows(file, columns, options.encoding, broken)]
    if files and not rows:
        raise broken[0] if broken else UserError(f"'{files[0]}' holds no rows.")
    return Table(rows, broken)


def _read_folder(folder: Path, options: ReadingOptions) -> Tables:
    return {split: _read_files(found, options) for split, found in split_files(folder).items()}


def split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split of a folder, by names that are or contain the split's; report unread tables.

    Raises:
        UserError: If there is no train file, or there are several files for a split.
    """
    files = {split: find_split_files(folder, split, required=False) for split in SPLITS}
    if not files["train"] or not files["test"]:
        files = _guess_files(folder, files)
    read = {file for found in files.values() for file in found}
    left = [file.name for file in _tables(folder) if file not in read]
    if left:
        warn_once(f"Tables of '{folder}' that are not read: {', '.join(left):.200}.")
    return {split: found for split, found in files.items() if found}


def _tables(folder: Path) -> list[Path]:
    """Return the files of a folder, in order, that have the ending of a table, without hidden ones and metadata."""
    files = (file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith("."))
    return [file for file in files if file.name.lower().endswith(ENDINGS) and not is_metadata(file.name)]


def _guess_files(folder: Path, known: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """Return the files of splits whose names contain that of a split, or the only table, or saved dataset, as train.

    Args:
        folder: The folder.
        known: The files of the splits that have one of their own name, which stay.

    Raises:
        UserError: If there is no train file, or there are several files for a split.
    """
    if (saved := find_saved_files(folder)) and not any(known.values()):
        return {"train": saved}
    taken = {file for files in known.values() for file in files}
    tables = [file for file in _tables(folder) if file not in taken]
    if len(tables) == 1 and not any(known.values()):
        warn_once(f"'{tables[0]}' is the only table of its folder, so all splits are from it.")
        return {"train": tables}
    by_name = {file.name: file for file in tables}
    guessed = match_splits(by_name, str(folder), [split for split in SPLITS if not known[split]])
    found = {split: known[split] or ([by_name[guessed[split]]] if split in guessed else []) for split in SPLITS}
    if not found["train"]:
        find_split_files(folder, "train")  # raises
    if guessed:
        named = ", ".join(f"{split} from {files[0].name}" for split, files in found.items() if files)
        warn_once(f"'{folder}' has its splits in files of other names: {named}.")
    return found


def match_splits(names: Iterable[str], where: str, splits: Iterable[str] = tuple(SPLITS)) -> dict[str, str]:
    """Return the name that is, or else contains, that of each split, such as ``reviews_train.csv``.

    A name that contains those of train and dev is train.

    Args:
        names: The names.
        where: What has them, for messages.
        splits: The splits that are missing.

    Raises:
        UserError: If several names contain the same, or a name contains those of train, or dev, and test.
    """
    found: dict[str, str] = {}
    words = {name: set(re.split(r"[^a-z]+", name.lower())) for name in names}
    for split in splits:
        usual = SPLITS[split]
        same = [name for name in words if name.lower() in usual]
        alike = same or [name for name in words if words[name] & set(usual)]
        if len(alike) > 1:
            raise UserError(
                f"'{where}' has several {split} splits ({', '.join(alike)}); keep one, or give one of each in Python."
            )
        if alike:
            found[split] = alike[0]
    if "train" in found and found.get("dev") == found["train"]:
        del found["dev"]
    if (double := next((name for name, count in Counter(found.values()).items() if count > 1), None)) is not None:
        raise UserError(f"'{where}' has one part, '{double}', for several splits; rename it, or divide it.")
    return found


def refuse_broken(tables: Tables) -> None:
    """Raise the first of the rows that could not be parsed, where all are needed."""
    for error in (error for table in tables.values() for error in table.broken):
        raise error


def read_every_row(source: Any, name: str, options: ReadingOptions) -> list[Row]:
    """Return the rows of a file, a folder or an object; those of several splits one after the other.

    Rows of a folder with several splits get a column ``split``.

    Raises:
        UserError: If the source cannot be read, or holds no rows.
    """
    if isinstance(source, str | Path) and not Path(source).is_dir():
        tables = {"train": _read_files([Path(source)], options)}
    else:
        tables = _read_folder(Path(source), options) if isinstance(source, str | Path) else read_object(source, name)
    refuse_broken(tables)
    if len(tables) == 1:
        return next(iter(tables.values())).rows
    return [(where, {SPLIT_COLUMN: split, **row}) for split, table in tables.items() for where, row in table.rows]


def read_texts(rows: Sequence[Row], options: ReadingOptions) -> list[tuple[str, str | None] | None]:
    """Return the text of each row, and the second text of a pair; None for a row without a text.

    Raises:
        UserError: If the columns cannot be determined.
    """
    names = column_names(rows)
    chosen = choose_columns(names, replace(options, label_column=None), "data", rows[0][0], (), rows)
    if chosen["text"] not in ("text", options.text_column):
        warn_once(f"The data has its text in '{chosen['text']}'.{propose_join(chosen['text'], names)}")
    rows = edit_rows(list(rows), [chosen.get("text"), chosen.get("text_pair")], options)
    found: list[tuple[str, str | None] | None] = []
    for _, row in rows:
        text, second = (_cell_text(row.get(chosen.get(column, ""))) for column in ("text", "text_pair"))
        found.append((text, second if "text_pair" in chosen else None) if text.strip() else None)
    return found


def _cell_text(value: Any) -> str:
    """Return the text of a cell; empty for a missing one, a structure, and a text that is not valid Unicode."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        return ""
    text = str(value)
    return "" if LONE_SURROGATE.search(text) else text


def label_column(rows: Sequence[Row], options: ReadingOptions, *usual: Collection[str]) -> str | None:
    """Return the column of the gold answers: the named one, ``label``, or the only one with a usual name; else None.

    Raises:
        UserError: If there is no column of that name.
    """
    names = column_names(rows)
    if options.label_column is not None and options.label_column not in names:
        raise unknown_name_error("column of the data for 'label_column'", options.label_column, names)
    found = label_columns(names, options.label_column, *usual)
    hidden = len(found) == 1 and _is_hidden(rows, found[0])
    if found and (hidden or len(found) > 1):
        why = "is -1 in all rows" if hidden else "each can hold gold answers; name one with --label-column"
        warn_once(f"Nothing is scored: {' and '.join(map(repr, found))} {why}.")
    return found[0] if len(found) == 1 and not hidden else None


def label_columns(names: Collection[str], given: str | None, *usual: Collection[str]) -> list[str]:
    """Return the columns that can hold labels: the named one, ``label``, or those of the first names that occur."""
    known = ([name for name in names if name.lower() in alike] for alike in usual)
    return [given] if given else ["label"] if "label" in names else next(filter(None, known), [])


def read_object(value: Any, name: str, label_column: str | None = None) -> Tables:
    """Return the splits of objects by split, or of one object as train; those with hidden labels are left out.

    Raises:
        UserError: If the object is none of the known forms, or has no train split.
    """
    if not isinstance(value, Mapping):
        return {"train": _table_of(value, f"{name}")}
    names = match_splits([str(key) for key in value], name)
    if "train" not in names:
        raise UserError(
            f"'{name}' has no train split; it has {', '.join(map(str, value)) or 'none'}. Give rows by split, such as "
            "{'train': [...], 'test': [...]}, or one list of rows."
        )
    found = {split: _table_of(value[key], f"{name}/{split}") for split, key in names.items()}
    left_out = [str(key) for key in value if key not in names.values()]
    _report_splits(name, [*left_out, *_drop_hidden(found, label_column)])
    return {split: table for split, table in found.items() if table.rows or split == "train"}


def _report_splits(name: str, splits: Sequence[str]) -> None:
    if splits:
        warn_once(f"Splits of '{name}' that are not used: {', '.join(splits)}.")


def _drop_hidden(tables: Tables, given: str | None) -> list[str]:
    """Remove a dev or test split without labels; return a description of each."""
    columns = label_columns(column_names(tables["train"].rows), given, LABEL_NAMES, SCORE_NAMES)
    hidden = [
        split
        for split in ("dev", "test")
        if split in tables and any(_is_hidden(tables[split].rows, name) for name in columns)
    ]
    for split in hidden:
        del tables[split]
    return [f"{split} (its labels are hidden)" for split in hidden]


def _is_hidden(rows: Sequence[Row], column: str) -> bool:
    """Return whether a column of labels is -1 in all rows, by which data sets mark hidden labels."""
    return bool(rows) and all(str(row.get(column)).strip() in ("-1", "-1.0") for _, row in rows)


def _table_of(value: Any, where: str) -> Table:
    """Return the rows of a ``Dataset``, a data frame of pandas or polars, a table of pyarrow, or a list of rows."""
    numbered: list[Row] = []
    broken: list[RowError] = []
    classes = class_names(value)
    for number, row in enumerate(_rows_of(value, where), 1):
        place = f"{where}: row {number}"
        if not isinstance(row := as_row(row), Mapping):
            broken.append(
                RowError(
                    place,
                    "that are no dictionaries of columns",
                    f"it is a {type(row).__name__}; a row is a dictionary of columns",
                )
            )
            continue
        try:
            row = name_classes(place, row, classes)
        except RowError as error:
            broken.append(error)
        else:
            numbered.append((place, {str(name).strip(): cell for name, cell in row.items()}))
    return Table(numbered, broken)


def _rows_of(value: Any, where: str) -> list[Any]:
    if (rows := table_rows(value)) is not None:
        return rows
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    raise UserError(
        f"'{where}' is a {type(value).__name__}; a task can be a folder, a file, 'hf:NAME', a Dataset, a data frame, "
        "a list of rows, or any of these by split."
    )
