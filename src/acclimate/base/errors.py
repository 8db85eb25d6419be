"""User-facing errors, checks of values that users give, and the orderly end of a process on a signal."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that end a line, move the cursor, change the direction of text, or cannot be written as UTF-8."""


class UserError(Exception):
    """A mistake that the user can fix.

    The message is one line that says what is wrong and what to do. The command line prints it without a traceback and
    exits with status 2.
    """

    def __init__(self, message: str) -> None:
        """Set the message, with control characters and bytes that are not UTF-8, as in file names, escaped."""
        super().__init__(printable(message))


class UserErrors(UserError):
    """Several mistakes that the user can fix, in one line.

    Attributes:
        messages: The message of each.
    """

    def __init__(self, messages: Sequence[str]) -> None:
        listed = " ".join(f"({number}) {message}" for number, message in enumerate(messages, start=1))
        super().__init__(f"{len(messages)} problems: {listed}")
        self.messages = list(messages)


class Problems:
    """Mistakes that are collected, so that the user can fix all of them at once."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}  # ordered, each once

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._messages)

    @contextmanager
    def collect(self, prefix: str = "") -> Iterator[None]:
        """Keep the UserError of the block, with ``prefix`` before its message, and go on after the block."""
        try:
            yield
        except UserErrors as errors:
            self._messages |= {f"{prefix}{message}": None for message in errors.messages}
        except UserError as error:
            self._messages[f"{prefix}{error}"] = None

    def check(self) -> None:
        """Raise what has been collected, if anything.

        Raises:
            UserError: The mistake, or all of them.
        """
        found = list(self._messages)
        if found:
            raise UserErrors(found) if len(found) > 1 else UserError(found[0])


def printable(text: str, kept: str = "") -> str:
    r"""Return a text as one printable line, with ``\n`` for a line end and ``\xe9`` for a byte that is not UTF-8.

    Args:
        text: The text.
        kept: Control characters that are not escaped.
    """
    return CONTROL.sub(
        lambda match: match[0] if match[0] in kept else repr(match[0])[1:-1].replace(r"\udc", r"\x"), text
    )


class DamagedFileError(Exception):
    """The rest of a file cannot be read.

    Attributes:
        line: The line (or row) at which reading stopped, from 1.
        reason: What is wrong.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def check_positive(**values: float) -> None:
    """Check that every value is finite and greater than zero.

    Raises:
        UserError: If one is not; the message names it as on the command line.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name.replace('_', '-')} must be more than zero, not {value:g}.")


def check_not_negative(**values: float) -> None:
    """Check that every value is finite and at least zero.

    Raises:
        UserError: If one is not; the message names it as on the command line.
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name.replace('_', '-')} must be zero or more, not {value:g}.")


def environment_integer(name: str, default: int = 0) -> int:
    """Return the value of an environment variable that launchers such as ``torchrun`` set.

    Raises:
        UserError: If it is not an integer of at least zero.
    """
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise UserError(f"The environment variable {name} is '{text}'; set it to an integer, or unset it.")
    return int(text or default)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error message, or the name of the exception class if there is none.

    A line that ends with a colon is followed by the next one.
    Where torch refuses a pickled file, its advice to load the file nevertheless is left out.
    """
    if "weights_only" in str(error):
        return "the file contains pickled objects other than weights, which could run code and are not loaded"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def shorten(value: object) -> str:
    """Return a value in at most 60 characters, for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print longer integers
        return "a number of more than 4,300 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def cut(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; a longer one ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return a sentence, after a space, that suggests the closest option; empty if none is close."""
    close = get_close_matches(name, sorted(options), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown_name_error(kind: str, name: str, options: Iterable[str]) -> UserError:
    """Make the error for a name that is not among the options.

    Args:
        kind: What the name refers to, for example ``"method"``.
        name: What the user wrote.
        options: The names that exist.

    Returns:
        An error whose message suggests the closest option and lists all of them.
    """
    choices = sorted(options)
    return UserError(f"Unknown {kind} '{name}'.{did_you_mean(name, choices)} Available: {', '.join(choices)}.")


@cache
def warn_once(message: str) -> None:
    """Log a warning, once per process and not for each seed."""
    logging.getLogger("acclimate").warning("%s", message)


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a disk that is full, read-only or broken."""
PATHS = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of a path that cannot be written to, for example because a file is in the place of a folder."""


def explain_os_error(error: OSError, cache: Path | None = None) -> str | None:
    """Return a line that says what a system error means and what to do; None if it may be a bug.

    Args:
        error: The error.
        cache: The cache folder.
    """
    where = f" ('{error.filename}')" if error.filename else ""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if error.errno in (errno.EACCES, errno.EPERM) and path and not _may_read(path):
        return f"'{error.filename}' cannot be read: {error.strerror}. Change its permissions, or copy it."
    if error.errno == errno.ENOENT and not error.filename:
        return "The current folder no longer exists; change to another folder."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}{where}. Raise the limit with 'ulimit -n 4096' and run the same command again."
    if error.errno not in (*DISK, *PATHS, errno.EACCES, errno.EPERM):
        return None
    advice = "free some space or choose another folder"
    if cache and path and path.is_relative_to(cache):
        advice = "free some space or set ACCLIMATE_CACHE to another folder"
    return f"{error.strerror}{where}. No partial result was kept: {advice}, and run the same command again."


def _may_read(path: Path) -> bool:
    """Return whether a path may be read; if it does not exist, whether it could be found."""
    if os.path.exists(path):
        return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)
    found = next((parent for parent in path.absolute().parents if os.path.exists(parent)), None)
    return found is None or os.access(found, os.X_OK)


USER_CODE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""Exceptions of user code that are reported. ``sys.exit`` in it must not end a run as if it were done."""


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Turn ``sys.exit`` in code of the user into an error.

    Raises:
        UserError: If the block ends the program.
    """
    try:
        yield
    except (SystemExit, GeneratorExit) as error:
        raise UserError(
            f"Code that is not of acclimate ended the program ({type(error).__name__}: {first_line(error)}), such as "
            "sys.exit in a method or function of yours; let it raise an error or return instead."
        ) from error


GRACE_SECONDS = 60.0
"""Seconds in which other processes can save a checkpoint after a signal."""


class Stopped(BaseException):
    """A signal, such as from Ctrl-C, ends the process. No job or library may handle it as a failure.

    Attributes:
        number: The signal.
        saved: Whether the training that it ends has a checkpoint; None if it ends something else.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.saved: bool | None = None


class OutOfTimeError(UserError):
    """Work in :func:`time_limit` took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the block by :class:`OutOfTimeError`, at its next :func:`check_stop` after so many seconds."""
    global _deadline
    before, _deadline = _deadline, min(_deadline, time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline = before


_deadline = math.inf
_requested = 0
_repeated = False
_postponing = 0


@contextmanager
def stop_on_signals(*more: int) -> Iterator[None]:
    """Turn Ctrl-C and the signals that end a job into :class:`Stopped`, except for signals that are ignored.

    Args:
        more: Further signals, even if something else handles them.
    """
    global _requested, _repeated
    _requested, _repeated = 0, False
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, *more}
    before = {number: signal.getsignal(number) for number in signals}
    replaceable = (signal.SIG_DFL, signal.default_int_handler)
    handled = [number for number in signals if number in more or before[number] in replaceable]
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        handled = []
    for number in handled:
        signal.signal(number, _request_stop)
    try:
        yield
    finally:
        _requested = 0
        for number in handled:
            signal.signal(number, before[number])


def _request_stop(number: int, frame: object) -> None:
    global _requested, _repeated
    _repeated = bool(_requested) and number == signal.SIGINT
    _requested = number
    check_stop()
    if number == signal.SIGINT:  # not by ``sys.stderr``, in the middle of whose work the signal may have come
        os.write(2, b"\nStopping after this step; press Ctrl-C again to stop at once.\n")


def requested_stop() -> int:
    """Return the number of the signal that has asked the process to end; 0 if none has."""
    return _requested


def check_stop() -> None:
    """Raise :class:`Stopped` if a signal has asked the process to end.

    Some libraries swallow an exception that a signal handler raises, so long work calls this between its steps.
    """
    if _requested and (_repeated or not _postponing):
        raise Stopped(_requested)
    if time.monotonic() > _deadline:
        raise OutOfTimeError("it takes longer than there is time for")


@contextmanager
def postpone_stop() -> Iterator[None]:
    """Let the block finish its step and save, if a signal asks the process to end; a second Ctrl-C does not wait.

    The block has to look at :func:`requested_stop`. Launchers may send a signal more than once.
    """
    global _postponing
    _postponing += 1
    try:
        yield
    finally:
        _postponing -= 1
