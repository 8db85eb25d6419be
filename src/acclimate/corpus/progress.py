"""A progress bar on stderr that only shows up for work that takes a while."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


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
            patience: Seconds to wait before the bar appears.
        """
        self._title = title
        self._total = total
        self._unit = unit
        self._begin = time.monotonic() + patience if enabled else float("inf")
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def at(self, count: int) -> None:
        """Say how far it has come."""
        if self._bar is None:
            if time.monotonic() < self._begin:
                return
            middle = [SpinnerColumn()] if self._total is None else [BarColumn()]
            columns = [TextColumn("{task.description}"), *middle, MofNCompleteColumn(), TextColumn(self._unit)]
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.update(self._task, completed=count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
