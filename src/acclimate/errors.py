"""User-facing errors, and checks of values that users give."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that end a line, move the cursor, or cannot be written as UTF-8."""


class UserError(Exception):
    """A mistake that the user can fix.

    The message is one line that says what is wrong and what to do. The command line prints it without a traceback and
    exits with status 2.
    """

    def __init__(self, message: str) -> None:
        """Set the message, with control characters and bytes that are not UTF-8, as in file names, escaped."""
        super().__init__(printable(message))


def printable(text: str) -> str:
    r"""Return a text as one printable line, with ``\n`` for a line end and ``\xe9`` for a byte that is not UTF-8."""
    return CONTROL.sub(lambda match: repr(match[0])[1:-1].replace(r"\udc", r"\x"), text)


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


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an error message, or the name of the exception class if there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def shorten(value: object) -> str:
    """Return a value in at most 60 characters, for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print longer integers
        return "a number of more than 4,300 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


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
