"""Folders of brat: a text per ``.txt`` file, and its entities in the ``.ann`` file of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from acclimate.errors import UserError, warn_once
from acclimate.tasks.entities.data import Entity, RawSentence
from acclimate.tasks.readers import SPLITS

ENDING = ".ann"
ENTITY = re.compile(r"T\S*\t(?P<type>\S+) (?P<start>\d+)(?P<between> \d+;\d+)* (?P<end>\d+)(?:\t(?P<text>.*))?")
"""An entity; one in several parts has semicolons between them."""


def find_brat_files(folder: Path) -> dict[str, list[Path]]:
    """Return the annotations by split: those in subfolders ``train``, ``dev`` and ``test``, else all as train."""
    found = {
        split: sorted(file for name in names for file in (folder / name).rglob(f"*{ENDING}"))
        for split, names in SPLITS.items()
    }
    if not found["train"]:
        found = {"train": sorted(folder.glob(f"*{ENDING}"))}
    return {split: files for split, files in found.items() if files}


def read_brat(
    files: Mapping[str, Sequence[Path]], name: str, encoding: str | None = None
) -> dict[str, list[RawSentence]]:
    """Read the texts and entities of each split; a file is a document.

    Of an entity in several parts, all from the first to the last character is used. Relations, events, attributes and
    notes are not used. Both are counted.

    Raises:
        UserError: If a file is missing or cannot be decoded, or an entity cannot be read.
    """
    unused = parts = 0
    rows: dict[str, list[RawSentence]] = {}
    for split, found in files.items():
        rows[split] = []
        for file in found:
            text, lines = _read(file.with_suffix(".txt"), encoding), _read(file, encoding).split("\n")
            spans, shown = [], []
            for number, line in enumerate(lines, 1):
                if not line.startswith("T"):
                    unused += bool(line.strip())
                    continue
                if (match := ENTITY.fullmatch(line.rstrip("\r"))) is None:
                    raise UserError(f"{file}:{number}: '{line:.60}' is no entity such as 'T1<TAB>PER 0 3<TAB>Ada'.")
                parts += bool(match["between"])
                spans.append(Entity(int(match["start"]), int(match["end"]), match["type"]))
                shown.append(None if match["between"] else match["text"])
            rows[split].append(RawSentence(str(file), text=text, spans=spans, shown=shown, group=file.stem))
    if unused:
        warn_once(f"Lines of the task '{name}' that are not used, since they mark no entity: {unused:,}.")
    if parts:
        warn_once(f"Entities of the task '{name}' in several parts, of which all between them is used: {parts:,}.")
    return rows


def _read(file: Path, encoding: str | None) -> str:
    """Return a file as text, with its line ends, which offsets count."""
    try:
        return file.read_bytes().decode(encoding or "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not {encoding or 'UTF-8'}; give its encoding"
        raise UserError(f"'{file}' cannot be read: {reason}.") from error
