"""Commands in forked processes that are killed, or run out of disk, at a chosen change to the disk.

After a kill, only what is on the disk remains. The disk does not change between two changes, so killing a process
(``kill -9``) just before its n-th change covers every moment since the previous one. A Python audit hook detects the
changes. Files that native code writes (weights, optimizer states, tokenizers) count as one change each; a limit on the
size of files truncates them in the middle.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from safetensors.torch import load_file

import acclimate.adaptation

# The children are forked, so they need not repeat these imports.
import acclimate.report
import acclimate.study
import acclimate.tasks
from acclimate.cli import main as cli

FORK = multiprocessing.get_context("fork")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.chmod")
GROWING = ("open", "os.mkdir", "os.link")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass
class Failure:
    """A failure to inject into a command.

    Attributes:
        kill: Number of the change to the disk before which the process gets a signal, from 1.
        signal: That signal.
        error: The ``errno`` with which changes fail: a disk that is full or read-only.
        since: Number of the first change that fails, from 1.
        limit: Maximum size of a file in bytes.
    """

    kill: int = 0
    signal: int = signal.SIGKILL
    error: int = 0
    since: int = 1
    limit: int = 0


@dataclass
class Ended:
    """How a command ended: exit code (negative: the signal that killed it), changes to the disk, and output."""

    code: int
    changes: int
    said: str


def run(command: list, folder: Path, failure: Failure | None = None) -> Ended:
    """Run a command in ``folder``, counting the changes to that folder; return how it ended."""
    folder.mkdir(exist_ok=True)
    said = folder.parent / f"{folder.name}.log"
    count = FORK.Value("i", 0, lock=False)
    child = FORK.Process(target=_child, args=([str(part) for part in command], folder, said, count, failure))
    child.start()
    child.join(120)
    if child.is_alive():
        child.kill()
        raise AssertionError(said.read_text())
    return Ended(child.exitcode, count.value, said.read_text(errors="replace"))


def _changed(event: str, args: tuple) -> str:
    """Return the path that an event of the audit hook changes; empty if it changes none."""
    if event not in CHANGES and (event != "open" or not args[2] & WRITING):
        return ""
    if not isinstance(args[0], str | bytes | os.PathLike):
        return ""
    path = os.fsdecode(args[0])
    return "" if event == "os.mkdir" and os.path.isdir(path) else path


def _child(command: list[str], folder: Path, said: Path, count, failure: Failure | None) -> None:
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ["ACCLIMATE_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    failure = failure or Failure()

    def hook(event: str, args: tuple) -> None:
        path = _changed(event, args)
        if not path or not f"{os.path.abspath(path)}/".startswith(f"{folder}/"):
            return
        count.value += 1
        if count.value == failure.kill:
            os.kill(os.getpid(), failure.signal)
        if failure.error and count.value >= failure.since and (event in GROWING or failure.error == errno.EROFS):
            raise OSError(failure.error, os.strerror(failure.error), path)

    sys.addaudithook(hook)
    if failure.limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (failure.limit, failure.limit))
    run_and_exit(command)


def run_and_exit(command: list[str]) -> NoReturn:
    """Run a command in this process, and end the process with its exit code, or with 70 after a traceback."""
    sys.argv = ["acclimate", *command]
    code = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 70
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def results(folder: Path) -> dict[str, str]:
    """Hash everything under ``out`` that must be reproduced: weights, predictions, losses, scores."""
    found = {}
    for file in written(folder):
        name = str(file.relative_to(folder))
        if file.suffix == ".safetensors":
            load_file(file)  # raises an error if the file is incomplete
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        elif file.name == "predictions.jsonl":
            found[name] = file.read_text()
        elif file.name == "log.jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found[name] = str([{**line, "seconds": None} for line in lines])
        elif file.parent.name == "jobs" and file.suffix == ".json":
            record = json.loads(file.read_text())
            if record["status"] == "done":
                found[name] = str(_timeless(record["result"]))
    return found


def written(folder: Path) -> list[Path]:
    """Return the final files under ``out``; names that begin with a dot are work in progress."""
    files = sorted(file for file in (folder / "out").rglob("*") if file.is_file())
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def _timeless(value):
    if isinstance(value, dict):
        return {key: _timeless(entry) for key, entry in value.items() if "seconds" not in key}
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value


def stamps(folder: Path) -> dict[str, int]:
    """Return the modification times of the files under ``out``."""
    return {str(file): file.stat().st_mtime_ns for file in written(folder)}


def left_over(folder: Path) -> list[str]:
    """Return the files and folders next to ``out`` that should be gone at the end."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("out", "cache"))


__all__ = ["Ended", "Failure", "acclimate", "left_over", "results", "run", "stamps"]
