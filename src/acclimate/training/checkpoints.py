"""Detection of incomplete checkpoints: the list of the files of a checkpoint is written last.

A process that is killed while it writes, or a full disk, leaves a checkpoint folder with missing or truncated files.
The list of files and their sizes is therefore written after all of them are on the disk. A folder without that list,
or with a file of another size, is ignored. The previous checkpoint is kept until the new one is complete.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from acclimate.files import read_json, write_json

COMPLETE_FILE = "complete.json"
MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the newest and the one before."""

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(checkpoint: Path) -> None:
    """Mark a checkpoint as complete, and remove all older ones except the newest of these."""
    sizes = {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != COMPLETE_FILE):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
        sizes[str(file.relative_to(checkpoint))] = file.stat().st_size
    write_json(checkpoint / COMPLETE_FILE, sizes)
    step = _checkpoint_step(checkpoint)
    older = [found for found in _list_checkpoints(checkpoint.parent) if _checkpoint_step(found) < step]
    for old in older[MAX_CHECKPOINTS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Return whether all files of a checkpoint exist and have their full size."""
    try:
        sizes = read_json(checkpoint / COMPLETE_FILE)
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def find_newest_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder, or None."""
    return next((found for found in _list_checkpoints(work) if is_complete(found)), None)


def remove_incomplete_checkpoints(work: Path) -> None:
    """Remove incomplete checkpoints, so that their files do not get into the next checkpoint of the same step."""
    for found in _list_checkpoints(work):
        if not is_complete(found):
            shutil.rmtree(found, ignore_errors=True)


def _list_checkpoints(work: Path) -> list[Path]:
    """Return the folders that are named like a checkpoint, the newest first."""
    found = [path for path in work.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_checkpoint_step, reverse=True)


def _checkpoint_step(checkpoint: Path) -> int:
    match = CHECKPOINT_NAME.fullmatch(checkpoint.name)
    return int(match.group(1)) if match else -1
