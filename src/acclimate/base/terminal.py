"""Output to the terminal. Texts from outside can neither move the cursor nor set a title, nor be shown reversed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from acclimate.base.errors import printable


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text to stdout or stderr, with control characters other than line ends and tabs escaped."""
    import typer

    typer.echo(printable(str(text), "\n\t"), nl=nl, err=err)


class SafeConsole(Console):
    """A console of ``rich`` that escapes control characters in texts, and takes brackets as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable with escaped texts."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, "\n\t")
            yield segment if text == segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error, as :func:`echo` does; ``rich`` would end the program as if a method had done so."""
        raise


class SafeFormatter(logging.Formatter):
    """Formats a record of a log as text without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text."""
        return printable(super().format(record), "\n\t")
