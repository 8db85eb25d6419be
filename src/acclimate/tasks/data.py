"""A labelled end task: three splits of texts (or pairs of texts) with one label each."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from acclimate.tasks.rows import FORMATS, Row, read_rows

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
"""The splits of a task, and the file names that stand for each."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts."""

    text: str
    text_pair: str | None
    label: int
    """Place of the label in :attr:`Task.labels`."""


@dataclass(frozen=True)
class Task:
    """A classification task.

    Labels are in a fixed order that depends on the train labels alone: by number if all are whole numbers, else
    alphabetical.
    """

    name: str
    train: list[Example]
    test: list[Example]
    labels: list[str]
    dev: list[Example] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def of(
        cls,
        name: str,
        train: Iterable[Mapping[str, Any]],
        test: Iterable[Mapping[str, Any]],
        dev: Iterable[Mapping[str, Any]] = (),
    ) -> Task:
        """Make a task from rows ``{"text", "text_pair"?, "label"}`` in memory.

        Raises:
            UserError: As :func:`load_task`.
        """
        splits = {"train": train, "dev": dev, "test": test}
        return _build(
            name,
            {
                split: [(f"{name}/{split}: row {number}", dict(row)) for number, row in enumerate(rows, 1)]
                for split, rows in splits.items()
            },
        )

    @property
    def is_pair(self) -> bool:
        """Say whether each row has two texts."""
        return self.train[0].text_pair is not None

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything in the task that can change a result.

        That is the splits with their texts, labels and order, as they were read: neither the name nor the format,
        nor columns that are not used. It belongs to what was loaded, also if the files change later.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for split in SPLITS:
            digest.update(f"\n{split}\n".encode())
            for example in getattr(self, split):
                digest.update(json.dumps([example.text, example.text_pair, example.label]).encode() + b"\n")
        return digest.hexdigest()

    def few_shot(self, count: int, seed: int) -> list[Example]:
        """Draw ``count`` train examples of each class, all of a class that has fewer, in the order of the file.

        Raises:
            UserError: If ``count`` is below one.
        """
        if count < 1:
            raise UserError(f"few_shot={count} leaves nothing to train on; ask for at least 1 example per class.")
        kept: list[int] = []
        for label in range(len(self.labels)):
            places = [place for place, example in enumerate(self.train) if example.label == label]
            # A generator per class: one more example of a class does not change what is drawn of the others.
            kept += random.Random(f"{seed}/{label}").sample(places, min(count, len(places)))
        return [self.train[place] for place in sorted(kept)]


def load_task(path: str | Path, *, name: str | None = None) -> Task:
    """Read a task folder with ``train``, ``test`` and, if there is one, ``dev``.

    Each is a ``.jsonl``, ``.csv``, ``.tsv`` (also ``.gz``) or ``.parquet`` file with the columns ``text``, ``label``
    and, for pairs, ``text_pair``; other columns are ignored. ``dev`` may also be called ``validation`` or ``valid``.
    A label is a string, a whole number or a truth value. In a task of pairs every row has a second text, which may
    be empty; a first text may not.

    Args:
        path: The folder.
        name: What to call the task; by default the name of the folder.

    Raises:
        UserError: If the folder or a file is missing, a row is broken, or the labels cannot be learnt.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(_no_folder(path))
    files = {split: _find(path, split) for split in SPLITS}
    rows: dict[str, list[Row]] = {split: list(read_rows(file)) if file else [] for split, file in files.items()}
    for split, file in files.items():
        if file and not rows[split]:
            raise UserError(f"'{file}' holds no rows.")
    return _build(name or path.resolve().name, rows, path)


def _no_folder(path: Path) -> str:
    wanted = "a task is a folder with train, test and perhaps dev as .jsonl, .csv, .tsv or .parquet"
    if path.exists():
        return f"'{path}' is a file, but {wanted}."
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f" Did you mean '{path.parent / close[0]}'?" if close else f" Remember that {wanted}."
    return f"There is no task folder '{path}'.{hint}"


def _find(folder: Path, split: str) -> Path | None:
    found = [file for stem in SPLITS[split] for ending in FORMATS if (file := folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise UserError(f"'{folder}' has several {split} files ({_names(found)}); keep one.")
    if not found and split != "dev":
        raise UserError(
            f"'{folder}' has no {split} file; it needs {split}.jsonl (or .jsonl.gz, .csv, .tsv, .parquet). "
            f"Found: {_names(folder.iterdir())}."
        )
    return found[0] if found else None


def _names(files: Iterable[Path]) -> str:
    names = sorted(file.name for file in files)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"


def _build(name: str, rows: Mapping[str, list[Row]], path: Path | None = None) -> Task:
    """Check the rows of all splits against each other and number the labels."""
    for split in ("train", "test"):
        if not rows[split]:
            raise UserError(f"The task '{name}' has no {split} rows.")
    pair = rows["train"][0][1].get("text_pair") is not None
    read = {split: [_read(where, row, pair) for where, row in rows[split]] for split in SPLITS}
    labels = _ordered({label for _, _, label in read["train"]})
    if len(labels) < 2:
        raise UserError(f"All train rows of the task '{name}' have the label '{labels[0]}'; it takes at least two.")
    numbers = {label: number for number, label in enumerate(labels)}
    examples: dict[str, list[Example]] = {}
    for split in SPLITS:
        for (where, _), (_, _, label) in zip(rows[split], read[split], strict=True):
            if label not in numbers:
                raise UserError(
                    f"{where}: the label '{label}' occurs in {split} but not in train, so it cannot be learnt. "
                    f"Train has: {_some(labels)}."
                )
        examples[split] = [Example(text, second, numbers[label]) for text, second, label in read[split]]
    return Task(name, examples["train"], examples["test"], labels, examples["dev"], path)


def _read(where: str, row: dict[str, Any], pair: bool) -> tuple[str, str | None, str]:
    for column in ("text", "label"):
        if column not in row:
            raise UserError(f"{where}: no column '{column}'. The columns are: {_some(map(str, row)) or 'none'}.")
    text, second = row["text"], row.get("text_pair")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: 'text' must be a text that is not empty; mend or remove the row.")
    if second is not None and not isinstance(second, str):
        raise UserError(f"{where}: 'text_pair' must be a text.")
    if any("\ud800" <= letter <= "\udfff" for letter in text + (second or "")):
        raise UserError(f"{where}: the text holds half of a surrogate pair, which is no letter; mend the row.")
    if (second is not None) != pair:
        state = (
            "has no 'text_pair', but the first train row has"
            if pair
            else "has a 'text_pair', the first train row none"
        )
        raise UserError(f"{where}: {state}; give one to every row or to none.")
    return text, second, _label(where, row["label"])


def _label(where: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # whole numbers come as floats out of tables with gaps elsewhere
    if isinstance(value, list | tuple):
        raise UserError(f"{where}: the label is a list; tasks with several labels a row are not supported.")
    if not isinstance(value, str | int):
        raise UserError(f"{where}: the label must be a string, a whole number or true/false, not {value!r:.40}.")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not label:
        raise UserError(f"{where}: the label is empty; mend or remove the row.")
    return label


def _ordered(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "")
