"""Task folders: finding the file of each split, and what is said when one is missing."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from acclimate.errors import UserError

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
"""The splits of a task, and the file names that stand for each."""


def check_folder(path: Path) -> None:
    """Raise UserError if there is no such folder, proposing the closest."""
    if not path.is_dir():
        raise UserError(_no_folder(path))


def _no_folder(path: Path) -> str:
    wanted = "a task is a folder with train, test and perhaps dev as .jsonl, .csv, .tsv or .parquet"
    if path.exists():
        return f"'{path}' is a file, but {wanted}."
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f" Did you mean '{path.parent / close[0]}'?" if close else f" Remember that {wanted}."
    return f"There is no task folder '{path}'.{hint}"


def find_split(folder: Path, split: str, formats: Iterable[str]) -> Path | None:
    """Return the file of a split; None if it is dev and there is none.

    Args:
        folder: Folder of the task.
        split: A key of :data:`SPLITS`.
        formats: Endings that can be read, the usual one first.

    Raises:
        UserError: If there are several, or none of train or test.
    """
    endings = list(formats)
    found = [file for stem in SPLITS[split] for ending in endings if (file := folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise UserError(f"'{folder}' has several {split} files ({_names(found)}); keep one.")
    if not found and split != "dev":
        raise UserError(
            f"'{folder}' has no {split} file; it needs {split}{endings[0]} (or {', '.join(endings[1:])}). "
            f"Found: {_names(folder.iterdir())}."
        )
    return found[0] if found else None


def _names(files: Iterable[Path]) -> str:
    names = sorted(file.name for file in files)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"
