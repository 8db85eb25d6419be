"""Atomic writing of files and folders: under a temporary name first, then renamed."""

from __future__ import annotations

import atexit
import errno
import functools
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from acclimate.base.errors import UserError, first_line

MANIFEST_FILE, RECORD_FILE = "acclimate.json", "run.json"
"""Manifests of the folders of adapted models and of end-task models, see :func:`record_files`."""
MAX_HASHED_BYTES = 2 * 10**9
"""Total size of the files of a finished folder up to which their content is checked, not only their sizes."""

log = logging.getLogger(__name__)


def cache_path() -> Path:
    """Return the path of the cache, ``$ACCLIMATE_CACHE`` or ``~/.cache/acclimate``, whether it is usable or not."""
    with suppress(RuntimeError):  # there is no home folder
        return Path(os.environ.get("ACCLIMATE_CACHE") or "~/.cache/acclimate").expanduser()
    return Path(os.devnull, "acclimate")


def cache_folder() -> Path:
    """Return the folder of the cache.

    If the cache cannot be written, that is a temporary folder with links to its content, and a warning is logged.
    """
    return _writable_cache(cache_path())


@functools.cache
def _writable_cache(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write_probe(path)
        return path
    except OSError as error:
        log.warning(
            "The cache '%s' cannot be written (%s), so later runs cannot reuse what this run computes. Set "
            "ACCLIMATE_CACHE to a folder that you can write.",
            path,
            error.strerror,
        )
    return _temporary_cache(path)


def _temporary_cache(path: Path) -> Path:
    temporary = Path(tempfile.mkdtemp(prefix="acclimate-cache-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    with suppress(OSError):
        for kind in filter(Path.is_dir, path.iterdir()):
            (temporary / kind.name).mkdir()
            for entry in kind.glob("[!.]*"):
                (temporary / kind.name / entry.name).symlink_to(entry.absolute())
    return temporary


def _write_probe(folder: Path) -> None:
    """Write to an unnamed file in a folder.

    Raises:
        OSError: If that is not possible.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"a")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def follow_link(path: str | Path) -> Path:
    """Return an output path, or the target of it if it is a symbolic link.

    Raises:
        UserError: If the target does not exist.
    """
    path = Path(path)
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if not target.exists():
        raise UserError(
            f"'{path}' is a link to '{os.readlink(path)}', which does not exist; create that folder or choose another."
        )
    return target


def _mode(base: int) -> int:
    """Return the permissions that the umask leaves of ``base``."""
    mask = os.umask(0o022)  # it can only be read by setting it
    os.umask(mask)
    return base & ~mask


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


def is_written_as_path(model: str) -> bool:
    """Return whether a model is given as a path: Hub names have at most one slash and do not start with a dot."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def local_folder(path: str | Path) -> Path | None:
    """Return the folder of a model, which may not exist if it is written as a path; None for a Hub name."""
    folder = Path(path)
    return folder if folder.exists() or is_written_as_path(str(path)) else None


def existing_folder(path: str | Path) -> Path | None:
    """Return the folder of a model; None for a Hub name.

    Raises:
        UserError: If it does not exist.
    """
    folder = local_folder(path)
    if folder is not None and not folder.is_dir():
        raise UserError(
            f"There is no model folder '{path}'. Give a Hugging Face model folder or the name of a model on the Hub."
        )
    return folder


def check_regular_file(path: Path) -> None:
    """Check that reading a path neither blocks nor runs forever; a missing file and a folder pass.

    Raises:
        UserError: If the path is a pipe, a socket or a device, or a link to one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"'{path}' is a pipe, a socket or a device, not a file; save its content in a file.")


@contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name, which replaces ``path`` at the end; create its folder if necessary."""
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, _mode(0o666))
        os.replace(name, path)
    except BaseException as error:
        _name_file(error, path)
        Path(name).unlink(missing_ok=True)
        raise


def _name_file(error: BaseException, path: Path) -> None:
    """Add to an error of a write, which knows no name, which file it was."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path`` atomically, create its folder if necessary, and return the path.

    The bytes of file names that are not UTF-8 are written as escapes, which JSON reads back unchanged.
    """
    with atomic_file(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` as indented JSON atomically, and return the path."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: If it is not JSON, or too deeply nested.
        UserError: If it is a pipe or a device.
    """
    check_regular_file(Path(path))
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file.

    Unlike ``str.splitlines``, it does not end a line at the separators of Unicode, which JSON leaves inside of texts.
    """
    text = Path(path).read_text(encoding=encoding)
    return text.removesuffix("\n").split("\n") if text else []


def read_json_object(path: str | Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it is missing or not a JSON object."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def record_files(folder: Path, manifest: str) -> None:
    """Add size and SHA-256 of all other files of a folder, flushed to disk, to its manifest, a JSON object."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / manifest):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    write_json(folder / manifest, {**read_json(folder / manifest), "checksums": files})


def is_intact(folder: str | Path, manifest: str, remedy: str) -> bool:
    """Return whether all files of a finished folder exist and are unchanged, except for the model card.

    Args:
        folder: A folder whose manifest was completed by :func:`record_files`.
        manifest: Name of the manifest.
        remedy: What to do about a damaged folder, for the error.

    Returns:
        False if files are missing: nothing is lost if the folder is made again.

    Raises:
        UserError: If a file has other content: it may have been damaged, or edited.
    """
    files = recorded_files(Path(folder), manifest, remedy)
    compare_content = sum(entry["bytes"] for entry in files.values()) <= MAX_HASHED_BYTES
    missing = False
    for name, entry in files.items():
        path = Path(folder) / name
        if not path.is_file():
            missing = True
        elif name != "README.md":
            status = path.stat()
            same = status.st_size == entry["bytes"]
            if not same or (
                compare_content and _hash_once(path, status.st_size, status.st_mtime_ns) != entry["sha256"]
            ):
                raise UserError(f"'{path}' is not what was written there; {remedy}.")
    if missing:
        _refuse_other_files(Path(folder), manifest, files)
    return not missing


@functools.lru_cache(maxsize=1000)
def _hash_once(path: Path, size: int, modified: int) -> str:
    return hash_file(path)


def recorded_files(folder: Path, manifest: str, remedy: str) -> dict[str, Any]:
    """Return size and SHA-256 of the files of a folder by name, from its manifest, see :func:`record_files`.

    Raises:
        UserError: If the manifest is damaged; ``remedy`` says what to do.
    """
    with suppress(FileNotFoundError):
        (folder / manifest).open().close()  # a file that may not be read is not damaged
    files = (read_json_object(folder / manifest) or {}).get("checksums")
    if not isinstance(files, dict) or not all(
        isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)
        for entry in files.values()
    ):
        raise UserError(f"'{folder / manifest}' is damaged; {remedy}.")
    return files


def _refuse_other_files(folder: Path, manifest: str, files: dict[str, Any]) -> None:
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    if other := next((name for name in found if name != manifest and name not in files), None):
        raise UserError(f"'{folder / other}' was not written by acclimate; move it, or choose another folder.")


def check_replaceable(out: str | Path | None, manifest: str, what: str) -> None:
    """Check that an output directory is absent, empty, or an earlier output without files of the user.

    Args:
        out: The folder; None skips the check.
        manifest: Name of the manifest that every such output contains, see :func:`record_files`.
        what: What such an output is, for messages.

    Raises:
        UserError: If the folder contains something else.
    """
    if out is None or not os.path.lexists(out):
        return
    folder = follow_link(out)
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not (folder / manifest).is_file():
        raise UserError(f"'{out}' exists and contains something other than {what}; choose another folder.")
    files = recorded_files(folder, manifest, f"delete '{out}', or choose another folder")
    _refuse_other_files(folder, manifest, files)


def check_report_file(out: str | Path | None) -> None:
    """Check that a JSON file can be written, and replaces at most an earlier report.

    Args:
        out: The file; None skips the check.

    Raises:
        UserError: If nothing can be written there, or there is another file.
    """
    if out is None:
        return
    report = read_json_object(out) if os.path.isfile(out) else None
    if os.path.exists(out) and "acclimate" not in (report or {}):
        raise UserError(f"'{out}' exists and is not a report of this command; choose another file.")
    check_writable(out)


def check_output_name(out: str | Path) -> None:
    """Check that the name of an output can be read again as a name of a file.

    Raises:
        UserError: If it has a line end in it.
    """
    if "\n" in str(out):
        raise UserError(f"The name '{out}' has a line end in it; choose another name.")


def check_writable(out: str | Path | None) -> None:
    """Check that an output can be created, before hours of computation are spent on its content.

    Args:
        out: The folder or file; None skips the check.

    Raises:
        UserError: If nothing can be written there.
    """
    if out is None:
        return
    try:
        str(out).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"The name {str(out)!r} is not valid UTF-8; choose another folder.") from error
    check_output_name(out)
    # A result is written next to its folder and then moved there, which fails for a folder that is in use.
    if Path(out).name in ("", "..") or Path.cwd().is_relative_to(os.path.realpath(out)):
        raise UserError(f"'{out}' cannot be the output: give the name of a new folder.")
    parent = follow_link(follow_link(out).parent)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _write_probe(parent)
    except OSError as error:
        raise UserError(f"Cannot write next to '{out}': {error.strerror}. Choose another folder.") from error


def check_output_folder(out: str | Path | None) -> None:
    """Check that an output folder can be created; None skips the check.

    Raises:
        UserError: If it is a file, or nothing can be written there.
    """
    if out is not None and os.path.isfile(out):
        raise UserError(f"'{out}' is a file; give a folder.")
    check_writable(out)


def safe_join(folder: str | Path, name: str) -> Path:
    """Return the path of a file in a folder, for a name that is not trusted.

    The name is checked, not where a link leads: the files of a model in the cache of the Hub are links.

    Raises:
        UserError: If the path is not inside the folder.
    """
    parts = Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute() or "\0" in name:
        raise UserError(f"The name '{name}' is outside the folder '{folder}'; give a plain file name.")
    return Path(folder) / name


@contextmanager
def translate_disk_errors(path: str | Path) -> Iterator[None]:
    """Turn disk errors of libraries into ``OSError``.

    On a full disk ``safetensors`` and ``tokenizers`` raise their own exception classes, and ``torch.save`` raises a
    ``RuntimeError``.
    """
    try:
        yield
    except OSError as error:
        _name_file(error, Path(path))
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

    The target of a link is replaced, not the link. The permissions of the files are those that the umask leaves. If
    the block raises, ``path`` does not change. If the process is killed, the temporary folder remains until
    :func:`remove_leftovers` removes it.
    """
    path = follow_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.parent.resolve() / path.name  # "a/../a" leads through the folder that is replaced
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.{NEW_PREFIX}"))
    try:
        with translate_disk_errors(path):
            yield temporary
        for entry in (temporary, *temporary.rglob("*")):  # some libraries create files that only the owner can read
            if not entry.is_symlink():
                entry.chmod(_mode(0o777 if entry.is_dir() else 0o666))
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


@contextmanager
def warn_on_write_error(what: str, folder: Path) -> Iterator[None]:
    """Log a warning if the block cannot write: a full or read-only disk must not end the run."""
    try:
        yield
    except OSError as error:
        log.warning("%s cannot be stored in '%s': %s.", what, folder.parent, first_line(error))
