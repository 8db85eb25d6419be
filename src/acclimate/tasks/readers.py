"""The files of a task folder, by split, and what the readers of all kinds of tasks share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import check_regular_file
from acclimate.data.opening import EXCEL, TABLES, suffixes_of
from acclimate.data.readers import list_unused
from acclimate.data.rows import Row

SPLITS = {
    "train": ("train", "training"),
    "dev": ("dev", "validation", "valid", "val", "testa"),
    "test": ("test", "testing", "testb"),
}
"""The splits of a task, and the possible names of each; the last ones are those of CoNLL-2003."""
FORMATS = suffixes_of(tuple(form for form in TABLES if form != EXCEL))
"""Endings of files with a split; Excel only if it is the only file, or its name merely contains that of a split."""
_SHARD = re.compile(r"(?P<stem>.+?)(?P<shard>-\d+-of-(?P<shards>\d+))?")


KNOWN_COLUMNS = ("id", "_id", "split")
"""Columns that say where a row is from."""


def report_unused(name: str, rows: Iterable[Row], used: Collection[str | None]) -> None:
    """Say which columns of the rows of a task are not used, with the number of rows that have each."""
    counts = Counter(column for _, row in rows for column in row)
    unused = {name: count for name, count in counts.items() if name not in used and name.lower() not in KNOWN_COLUMNS}
    if unused:
        warn_once(f"Columns of the task '{name}' that are not used: {list_unused(unused)}.")


def report_kind(name: str, kind: str, columns: Mapping[str, str], hint: str = "") -> None:
    """Say which kind a task is, and which of its parts is in which column, and perhaps a hint after a space."""
    parts = ", ".join(f"{part} in '{column}'" for part, column in columns.items())
    warn_once(f"The task '{name}' is {kind}: {parts}.{hint}")


def fold_text(text: str) -> str:
    """Return a text without differences of case and blanks."""
    return " ".join(text.casefold().split())


def find_split_files(folder: Path, split: str, *, required: bool = True) -> list[Path]:
    """Return the file of a split, or its parts (``train-00000-of-00002.parquet``) in order; empty if there are none.

    The files of a dataset that ``datasets`` has saved (``train/data-00000-of-00001.arrow``) or that is from the Hub
    (``data/train-00000-of-00001.parquet``) are found as well.

    Args:
        folder: Folder of the task.
        split: A key of :data:`SPLITS`.
        required: Whether a missing file of train or test is an error.

    Raises:
        UserError: If there are several files, a part is missing, or there is none for train or test.
    """
    found: dict[str, list[Path]] = {}
    expected = 1
    for stem in SPLITS[split]:
        saved = folder / stem
        for file in sorted((*folder.iterdir(), *saved.glob("data-*.arrow"), *(folder / "data").glob("*.*"))):
            ending = next((ending for ending in FORMATS if file.name.endswith(ending)), None)
            match = _SHARD.fullmatch(file.name.removesuffix(ending)) if ending else None
            if match is None or file.is_dir() or match["stem"] != ("data" if file.parent == saved else stem):
                continue
            check_regular_file(file)
            found.setdefault(f"{file.parent}/{stem}{match['shards']}{ending}", []).append(file)
            expected = int(match["shards"] or 1)
    if len(found) > 1:
        files = [file for group in found.values() for file in group]
        raise UserError(f"'{folder}' has several {split} files ({_list_names(files)}); keep one.")
    if not found and required and split != "dev":
        raise UserError(
            f"'{folder}' has no {split} file; it needs {split}{FORMATS[0]} (or {', '.join(FORMATS[1:6])}). "
            f"Found: {_list_names(folder.iterdir())}.{advise_conversion(folder.rglob('*'))}"
        )
    files = next(iter(found.values()), [])
    if files and len(files) != expected:
        raise UserError(f"'{folder}' has {len(files)} of the {expected} parts of its {split} split; add the others.")
    return files


def find_saved_files(folder: Path) -> list[Path]:
    """Return the files of a dataset without splits that ``datasets`` has saved, in order; empty for other folders.

    Raises:
        UserError: If the list of files is damaged, or one is missing.
    """
    listed = folder / "state.json"
    if not listed.is_file():
        return []
    try:
        names = [str(entry["filename"]) for entry in json.loads(listed.read_text(encoding="utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError):
        return []  # the state of something else
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"The saved dataset '{folder}' lacks its file '{name}'; save it again.")
    return [folder / name for name in names]


def advise_conversion(files: Iterable[Path]) -> str:
    """Return the line that converts files of spaCy, after a space; empty if there are none."""
    if (file := next((file for file in sorted(files) if file.suffix == ".spacy"), None)) is None:
        return ""
    return (
        ' A .spacy file is not read; with spaCy, this line converts one: python -c "import json, spacy; from '
        "spacy.tokens import DocBin; [print(json.dumps({'text': d.text, 'spans': [{'start': e.start_char, 'end': "
        "e.end_char, 'label': e.label_} for e in d.ents]})) for d in "
        f"DocBin().from_disk('{file.name}').get_docs(spacy.blank('en').vocab)]\" > {file.stem}.jsonl"
    )


def _list_names(files: Iterable[Path]) -> str:
    names = sorted(file.name for file in files)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"
