"""Writing to disk so that a kill at any moment loses nothing: a temporary name first, then a rename."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from acclimate.errors import UserError


def cache_folder() -> Path:
    """Return where is kept what took long and is needed again: ``$ACCLIMATE_CACHE`` or ``~/.cache/acclimate``."""
    return Path(os.environ.get("ACCLIMATE_CACHE") or Path.home() / ".cache" / "acclimate")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_file(name: str | Path) -> Path | None:
    """Return the path of a file, ``~`` being the home folder; None if there is none.

    Some parameters are a file or else words: what no file can be called, because it is too long, say, is no error.
    """
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


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
        return tomllib.loads(text) if path.suffix == ".toml" else _load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:  # that of TOML, of a wrong encoding, of a date that does not exist
        raise UserError(f"Cannot parse {what} '{path}': {' '.join(str(error).split())}") from error


def _load_yaml(text: str) -> Any:
    """Read YAML as ``yaml.safe_load`` does, but refuse a key that stands twice, of which that would take the last.

    Raises:
        yaml.YAMLError: If it cannot be parsed.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                # "<<" merges another mapping in, and its keys are meant to be overridden.
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key '{key.value}' stands twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


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


def check_writable(out: str | Path | None) -> None:
    """Check that a folder can be made where it is to be, before hours of work go into it.

    Args:
        out: The folder; None for none.

    Raises:
        UserError: If nothing can be written there.
    """
    if out is None:
        return
    place = Path(out).parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"a")
    except OSError as error:
        raise UserError(f"Cannot write beside '{out}': {error.strerror}. Choose another folder.") from error


def safe_join(folder: str | Path, name: str) -> Path:
    """Return the path of a file of a folder, whose name comes from elsewhere.

    Raises:
        UserError: If the name leads out of the folder.
    """
    path = Path(folder) / name
    if not path.resolve().is_relative_to(Path(folder).resolve()) or path.resolve() == Path(folder).resolve():
        raise UserError(f"The name '{name}' leads out of the folder '{folder}'; give a plain file name.")
    return path


@contextmanager
def translate_disk_errors(path: str | Path) -> Iterator[None]:
    """Let a full disk be an ``OSError``, whatever a writer of tensors makes of it.

    Those of ``safetensors`` and ``tokenizers`` raise errors of their own, and ``torch.save`` a ``RuntimeError``.
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
            raise OSError(errno.ENOSPC, "The disk is full, or a file may not be that large", str(path)) from error
        raise


NEW_PREFIX, OLD_PREFIX = "new-", "old-"


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its place when the block ends well.

    A folder that was there before is replaced only then. If the block raises, ``path`` is as it was. What a kill
    leaves of the temporary one is removed by :func:`remove_leftovers`.
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
    """Remove what processes that were killed left of :func:`atomic_folder`; for who alone may write ``path``.

    If one was killed between the two renames of a replacement, what was there before comes back.
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
    """Let ``temporary`` take the place of ``path``; of several processes that do so at once, none fails."""
    for tries in range(20, 0, -1):
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.{OLD_PREFIX}")) if path.exists() else None
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
