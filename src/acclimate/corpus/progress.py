"""Progress on stderr that only shows up for work that takes a while: a bar, or lines where there is no terminal."""

from __future__ import annotations

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

from acclimate.corpus.progress_lines import ProgressLines


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
