"""Writing to disk so that a kill at any moment loses nothing: a temporary name first, then a rename."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from acclimate.errors import UserError


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path`` atomically, making its folder if need be; return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` as indented JSON, atomically; return the path."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_settings(path: str | Path, what: str) -> Any:
    """Read a file of settings: TOML if it is called so, else YAML.

    Args:
        path: A file that is there.
        what: What it is, in words.

    Raises:
        UserError: If it cannot be parsed.
    """
    import tomllib

    import yaml  # neither is needed by most commands

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot parse {what} '{path}': {' '.join(str(error).split())}") from error


def check_replaceable(out: str | Path | None, mark: str, what: str) -> None:
    """Check that a folder that is going to be replaced is absent, empty or ours.

    Args:
        out: The folder; None for none.
        mark: A file that is in every folder of ours.
        what: What such a folder holds, in words.

    Raises:
        UserError: If it is something else.
    """
    if out is None or not Path(out).exists():
        return
    if not Path(out).is_dir() or (any(Path(out).iterdir()) and not (Path(out) / mark).is_file()):
        raise UserError(f"'{out}' exists and holds something other than {what}; choose another place.")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its place when the block ends well.

    A folder that was there before is replaced only then. If the block raises, ``path`` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        _put(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _put(temporary: Path, path: Path) -> None:
    """Let ``temporary`` take the place of ``path``; of several processes that do so at once, none fails."""
    for tries in range(20, 0, -1):
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old.")) if path.exists() else None
        try:
            if old is not None:
                with suppress(FileNotFoundError):  # another process was quicker to move it away
                    os.replace(path, old / "old")
            os.replace(temporary, path)
            tries = 1
        except OSError as error:  # another process put its folder there in between
            if tries == 1 or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        if tries == 1:
            return
