"""How far a count has come, in lines of their own: for logs, where no bar can be drawn.

Progress on stderr that only shows up for work that takes a while: a bar, or lines where there is no terminal.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

FIRST_LINE_SECONDS, MAX_INTERVAL_SECONDS = 10.0, 300.0
"""Seconds until the first line, and between two lines at most; else half of the time until now."""


class ProgressLines:
    """Writes to stderr now and then how far a count has come, and how long the rest will take."""

    def __init__(self, title: str, total: float | None, *, unit: str = "") -> None:
        """Start the clock; nothing is written yet.

        Args:
            title: What is being done.
            total: The count at which it is done, or None if that is not known.
            unit: What is counted; without one the share is told, but no counts.
        """
        self._title = title
        self.total = total
        self._unit = unit
        self._start = time.monotonic()
        self._next = FIRST_LINE_SECONDS
        self._seen: tuple[float, float] | None = None
        self._count = 0.0
        self._told: float | None = None

    def at(self, count: float, note: str = "") -> None:
        """Say how far it has come, if it is time for a line."""
        elapsed = time.monotonic() - self._start
        # The rate is that from the first count on: a resumed run did not do in its time what it found done.
        self._seen = self._seen or (count, elapsed)
        self._count = count
        if elapsed >= self._next:
            self._next = elapsed + min(max(elapsed / 2, FIRST_LINE_SECONDS), MAX_INTERVAL_SECONDS)
            self._write(note, elapsed, self._seconds_left(elapsed))

    def end(self, note: str = "", *, always: bool = False) -> None:
        """Write a last line if there was one before that says less, or ``always`` if there was none."""
        if always if self._told is None else self._told != self._count:
            self._write(note, time.monotonic() - self._start, None)

    def _seconds_left(self, elapsed: float) -> float | None:
        """Return the seconds that are left at the rate until now, or None if that cannot be told."""
        assert self._seen is not None
        counted, since = self._count - self._seen[0], elapsed - self._seen[1]
        if self.total is None or counted <= 0 or self._count >= self.total:
            return None
        return (self.total - self._count) * since / counted

    def _write(self, note: str, elapsed: float, rest: float | None) -> None:
        self._told = self._count
        of = f" of {self.total:,.0f}" if self.total else ""
        said = [
            f"{self._count:,.0f}{of} {self._unit}" if self._unit else "",
            f"{100 * min(1.0, self._count / self.total):.0f} %" if self.total else "",
            note.strip(),
            format_duration(elapsed),
            "" if rest is None else f"about {format_duration(rest)} left",
        ]
        sys.stderr.write(f"{self._title}: {', '.join(filter(None, said))}\n")
        sys.stderr.flush()


def format_duration(seconds: float) -> str:
    """Return a time as minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


class Progress:
    """Shows how far a count has come, from two seconds after the start on; a context manager."""

    def __init__(
        self, title: str, total: int | None, *, unit: str = "", enabled: bool = True, patience: float = 2.0
    ) -> None:
        """Prepare; nothing is shown yet.

        Args:
            title: What is being done.
            total: The count at which it is done, or None if that is not known.
            unit: What is counted.
            enabled: Whether to show anything at all.
            patience: Seconds to wait before the bar appears; lines have their own.
        """
        self._title = title
        self._total = total
        self._unit = unit
        self._begin = time.monotonic() + patience if enabled else float("inf")
        self._bar: Bar | None = None
        self._lines = ProgressLines(title, total, unit=unit) if enabled and not can_draw() else None

    def __enter__(self) -> Progress:
        return self

    def at(self, count: int) -> None:
        """Say how far it has come."""
        if self._lines is not None:
            self._lines.at(count)
            return
        if self._bar is None:
            if time.monotonic() < self._begin:
                return
            middle = [SpinnerColumn()] if self._total is None else [BarColumn()]
            end = [TimeElapsedColumn()] if self._total is None else [TimeElapsedColumn(), TimeRemainingColumn()]
            columns = [TextColumn("{task.description}"), *middle, MofNCompleteColumn(), TextColumn(self._unit), *end]
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.update(self._task, completed=count)

    def expect(self, total: int) -> None:
        """Say that it will be done at another count than was thought."""
        self._total = total
        if self._lines is not None:
            self._lines.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.end()


def can_draw() -> bool:
    """Whether stderr can show a bar that moves: a terminal or a notebook, not a file or a pipe."""
    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter
