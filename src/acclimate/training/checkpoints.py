"""Checkpoints that are known to be whole: a list of their files is written last, and the newest whole one is used.

A process that is killed while it writes, or a disk that is full, leaves a checkpoint that has a good name and too
little in it. So the list of the files with their sizes is the last thing that is written, when all of them are on the
disk; a folder without it, or with a file of another size, is no checkpoint. The one before is kept until then.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from acclimate.files import read_json, write_json

COMPLETE_FILE = "complete.json"
MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the newest, and the one before."""

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint is whole, and remove all but the one before it."""
    sizes = {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != COMPLETE_FILE):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
        sizes[str(file.relative_to(checkpoint))] = file.stat().st_size
    write_json(checkpoint / COMPLETE_FILE, sizes)
    for old in [
        found
        for found in _list_checkpoints(checkpoint.parent)
        if _checkpoint_step(found) < _checkpoint_step(checkpoint)
    ][MAX_CHECKPOINTS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Say whether a checkpoint has all its files, each as long as it was."""
    try:
        sizes = read_json(checkpoint / COMPLETE_FILE)
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def find_newest_checkpoint(work: Path) -> Path | None:
    """Return the newest whole checkpoint in a folder, or None."""
    return next((found for found in _list_checkpoints(work) if is_complete(found)), None)


def remove_incomplete_checkpoints(work: Path) -> None:
    """Remove what a kill left of checkpoints, so that nothing of it gets into the next one of that name."""
    for found in _list_checkpoints(work):
        if not is_complete(found):
            shutil.rmtree(found, ignore_errors=True)


def _list_checkpoints(work: Path) -> list[Path]:
    """Return the folders that have the name of a checkpoint, the newest first."""
    found = [path for path in work.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_checkpoint_step, reverse=True)


def _checkpoint_step(checkpoint: Path) -> int:
    match = CHECKPOINT_NAME.fullmatch(checkpoint.name)
    return int(match.group(1)) if match else -1
