"""Runs the command line in forked children, each in its own folder and with a time limit."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import acclimate.adaptation  # noqa: F401

# The children are forked, so they need not repeat these imports.
from tests.robustness.killed_process import run_and_exit

FORK = multiprocessing.get_context("fork")
HALF_WRITTEN = re.compile(r"\.(new|old)-|\.lock$|\.claim$|^tmp")
"""Names of temporary folders, locks and claims, none of which may be left at the end."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ADVICE = re.compile(r"^(Next[:,]|One seed says little)")
"""Beginnings of the lines after a result that say what to do next."""
BOX = " │╭╰─╮╯"
"""Characters that frame an error of the parser of flags."""

Maker = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A hostile input, and how the command must end.

    Attributes:
        name: What is wrong.
        command: The arguments of ``acclimate``, as in a shell. The working directory is a new folder that contains
            ``bert``, ``text.txt``, ``task`` and ``study.yaml``.
        code: Expected exit code.
        line: Regular expression for the last line of the output but for advice.
        make: Writes the hostile input into the folder.
        also: Regular expression that must match somewhere in the output.
        never: Regular expression that may match nowhere in the output.
        check: Checks the folder afterwards.
        inside: Called in the child before the command, for example to give up the rights of root.
        env: Environment variables.
        seconds: Time limit; generous, since only a command that hangs reaches it.
    """

    name: str
    command: str
    code: int
    line: str
    make: Maker = lambda folder: None
    also: str = ""
    never: str = ""
    check: Maker = lambda folder: None
    inside: Callable[[], object] = lambda: None
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = 20.0


def run(case: Case, folder: Path) -> None:
    """Run a case in an existing folder, and check how it ends.

    Raises:
        AssertionError: If it ends in another way; the message contains the output.
    """
    case.make(folder)
    had_output = os.path.lexists(folder / "out")
    log = folder.parent / f"{folder.name}.log"
    child = FORK.Process(target=_child, args=(case, folder, log))
    start = time.perf_counter()
    child.start()
    child.join(case.seconds)
    if child.is_alive():
        child.kill()
        child.join()
    seconds = time.perf_counter() - start
    said = log.read_text(errors="replace")
    lines = [line.strip(BOX) for line in said.splitlines()]
    last = next((line for line in reversed(lines) if line and not ADVICE.match(line)), "")
    problems = [
        *([f"it takes more than {case.seconds:g} s"] if seconds >= case.seconds else []),
        *([f"exit code {child.exitcode}, not {case.code}"] if child.exitcode != case.code else []),
        *([f"the last line does not match {case.line!r}"] if not re.search(case.line, last) else []),
        *([f"the output does not contain {case.also!r}"] if not re.search(case.also, said) else []),
        *([f"the output contains {case.never!r}"] if case.never and re.search(case.never, said) else []),
        *(["there is a traceback"] if "Traceback (most recent call last)" in said else []),
        *(f"{path} is left" for path in _half_written(folder)),
    ]
    if case.code == 2 and not had_output and _files(folder / "out"):
        problems.append("it is refused, and yet something is written")
    assert not problems, f"{case.name}: {'; '.join(problems)}\n{said}"
    case.check(folder)


def _files(folder: Path) -> list[Path]:
    """Return the files in a folder, without those of unfinished work."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _half_written(folder: Path) -> list[str]:
    return sorted(
        os.path.join(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if HALF_WRITTEN.search(name)
    )


def _child(case: Case, folder: Path, log: Path) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", encoding=case.env.get("PYTHONIOENCODING", "utf-8"), closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    logging.getLogger().handlers.clear()  # those of pytest; without one, warnings go to the terminal
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.mkdir(folder / "scratch")
    tempfile.tempdir = str(folder / "scratch")
    os.environ |= {"ACCLIMATE_CACHE": str(folder / "cache"), "HOME": str(folder / "home"), "COLUMNS": "400"}
    os.environ |= {name: value.format(folder=folder) for name, value in case.env.items()}
    if os.environ["ACCLIMATE_CACHE"] == "":
        del os.environ["ACCLIMATE_CACHE"]
    os.chdir(folder)
    case.inside()
    run_and_exit([os.fsdecode(os.fsencode(part)) for part in shlex.split(case.command)])


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def give_up_rights() -> None:
    """Give up the capabilities with which root ignores permissions; other users have none."""
    header, none = _Header(0x20080522, 0), (_Data * 2)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), none) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of root cannot be given up")
