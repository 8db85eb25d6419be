"""Atomic writing of files and folders: under a temporary name first, then renamed."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from acclimate.errors import UserError


def cache_folder() -> Path:
    """Return the cache folder: ``$ACCLIMATE_CACHE`` or ``~/.cache/acclimate``."""
    return Path(os.environ.get("ACCLIMATE_CACHE") or Path.home() / ".cache" / "acclimate")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_file(name: str | Path) -> Path | None:
    """Return the path of a file, with ``~`` expanded; None if there is no such file.

    Some parameters are either a file or a list of words, so an invalid path, such as one that is too long, is not an
    error.
    """
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def check_regular_file(path: Path) -> None:
    """Check that reading a path neither blocks nor goes on without end; a missing file and a folder pass.

    Raises:
        UserError: If the path is a pipe, a socket or a device, or a link to one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"'{path}' is a pipe, a socket or a device, not a file; save its content in a file.")


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path`` atomically, create its folder if necessary, and return the path."""
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
    """Write ``value`` as indented JSON atomically, and return the path."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_settings(path: str | Path, what: str) -> Any:
    """Read a settings file: TOML if its name ends in ``.toml``, else YAML.

    Args:
        path: An existing file.
        what: What the file is, for messages.

    Raises:
        UserError: If the file cannot be parsed.
    """
    import tomllib

    import yaml  # not needed by most commands

    path = Path(path)
    check_regular_file(path)
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else _load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:  # invalid TOML, encodings and dates are ValueErrors
        raise UserError(f"Cannot parse {what} '{path}': {' '.join(str(error).split())}") from error


def _load_yaml(text: str) -> Any:
    """Parse YAML like ``yaml.safe_load``, but without two of its surprises.

    Duplicate keys are refused; ``safe_load`` silently keeps the last. ``010`` and ``1:30`` are text, as in YAML 1.2;
    ``safe_load`` reads an octal and a sexagesimal number, 8 and 90.

    Raises:
        yaml.YAMLError: If the text cannot be parsed or has a duplicate key.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            return self.DEFAULT_SCALAR_TAG if number and re.match(r"[-+]?0[0-9_]+$|.*:", value) else tag

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                # "<<" merges another mapping, whose keys may be overridden.
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key '{key.value}' is duplicated", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def check_replaceable(out: str | Path | None, mark: str, what: str) -> None:
    """Check that an output folder is absent, empty, or an earlier output that may be replaced.

    Args:
        out: The folder; None skips the check.
        mark: Name of a file that every such output contains.
        what: What such an output is, for messages.

    Raises:
        UserError: If the folder contains something else.
    """
    if out is None or not Path(out).exists():
        return
    if not Path(out).is_dir() or (any(Path(out).iterdir()) and not (Path(out) / mark).is_file()):
        raise UserError(f"'{out}' exists and contains something other than {what}; choose another folder.")


def check_writable(out: str | Path | None) -> None:
    """Check that an output folder can be created, before hours of computation are spent on its content.

    Args:
        out: The folder; None skips the check.

    Raises:
        UserError: If nothing can be written there.
    """
    if out is None:
        return
    # A result is written beside its folder and then moved there, which fails for a folder that is in use.
    if Path(out).name in ("", "..") or Path.cwd().is_relative_to(os.path.realpath(out)):
        raise UserError(f"'{out}' cannot be the output: give the name of a new folder.")
    parent = Path(out).parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"a")
    except OSError as error:
        raise UserError(f"Cannot write beside '{out}': {error.strerror}. Choose another folder.") from error


def safe_join(folder: str | Path, name: str) -> Path:
    """Return the path of a file in a folder, for a name that is not trusted.

    Raises:
        UserError: If the path is not inside the folder.
    """
    path = Path(folder) / name
    if not path.resolve().is_relative_to(Path(folder).resolve()) or path.resolve() == Path(folder).resolve():
        raise UserError(f"The name '{name}' is outside the folder '{folder}'; give a plain file name.")
    return path


@contextmanager
def translate_disk_errors(path: str | Path) -> Iterator[None]:
    """Turn disk errors of libraries into ``OSError``.

    On a full disk ``safetensors`` and ``tokenizers`` raise their own exception classes, and ``torch.save`` raises a
    ``RuntimeError``.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number:
            raise OSError(int(number.group(1)), os.strerror(int(number.group(1))), str(path)) from error
        if isinstance(error, RuntimeError) and re.search(r"PytorchStreamWriter|inline_container", str(error)):
            raise OSError(errno.ENOSPC, "The disk is full, or the file is too large", str(path)) from error
        raise


NEW_PREFIX, OLD_PREFIX = "new-", "old-"


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that is moved to ``path`` if the block succeeds, replacing an existing folder.

    If the block raises, ``path`` does not change. If the process is killed, the temporary folder remains until
    :func:`remove_leftovers` removes it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.{NEW_PREFIX}"))
    try:
        with translate_disk_errors(path):
            yield temporary
        temporary.chmod(0o755)
        _move_into_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_leftovers(path: str | Path) -> None:
    """Remove the temporary folders of :func:`atomic_folder` that killed processes left behind.

    Only the process that holds the lock on ``path`` may call it. If a process was killed between the two renames of a
    replacement, the old folder is restored.
    """
    path = Path(path)
    for old in path.parent.glob(f".{glob.escape(path.name)}.{OLD_PREFIX}*"):
        if (old / "old").exists() and not path.exists():
            with suppress(OSError):
                os.replace(old / "old", path)
        shutil.rmtree(old, ignore_errors=True)
    for new in path.parent.glob(f".{glob.escape(path.name)}.{NEW_PREFIX}*"):
        shutil.rmtree(new, ignore_errors=True)


def _move_into_place(temporary: Path, path: Path) -> None:
    """Move ``temporary`` to ``path``; several processes may do so at the same time."""
    for tries in range(20, 0, -1):
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.{OLD_PREFIX}")) if path.exists() else None
        try:
            if old is not None:
                with suppress(FileNotFoundError):  # another process has already moved it
                    os.replace(path, old / "old")
            os.replace(temporary, path)
            tries = 1
        except OSError as error:  # another process has moved its folder there in between
            if tries == 1 or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        if tries == 1:
            return
