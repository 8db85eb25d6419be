"""Progress: a bar on a terminal, a line in a notebook that is updated, an occasional line in a log; or silence."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from acclimate.base.errors import check_stop, printable
from acclimate.base.terminal import SafeConsole

FIRST_LINE_SECONDS, MAX_INTERVAL_SECONDS, JOB_SECONDS = 10.0, 300.0, 30.0
"""In a log: seconds until the first line, the longest pause between lines, and the pause between lines on one job.

The pause is half of the elapsed time, within the first two limits."""
REDRAW_SECONDS = 0.1
NOTEBOOK_SECONDS = 0.5
"""Seconds between two updates in a notebook, each of which is a message to the browser."""

log = logging.getLogger(__name__)
_showing_job: Progress | None = None


class _BarWithTable(RichProgress):
    """A bar above a table of what several processes do."""

    rows: Sequence[tuple[str, str, str, float]] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and the table if it has rows."""
        yield from super().get_renderables()
        if self.rows:
            table = Table("worker", "on", "job", "for", box=None, padding=(0, 2, 0, 0), header_style="dim")
            for worker, place, job, seconds in self.rows:
                table.add_row(worker, place, Text(job, overflow="ellipsis", no_wrap=True), format_duration(seconds))
            yield table


class Progress:
    """A context manager that shows the progress of a count.

    Without a terminal it writes a line after 10 seconds and then at growing intervals, to stderr. In a notebook it
    updates one line of the output of the cell.
    """

    def __init__(
        self,
        title: str,
        total: float | None,
        *,
        unit: str = "",
        enabled: bool = True,
        delay: float = 2.0,
        persistent: bool = False,
        estimated: bool = True,
    ) -> None:
        """Start the clock; nothing is shown yet.

        Args:
            title: What is being done.
            total: The count at which the work is finished; None if unknown.
            unit: What is counted. Without a unit only the percentage is shown.
            enabled: Whether to show anything at all.
            delay: Seconds before the bar appears, so that short work shows none.
            persistent: Whether the last state remains visible: the bar stays on the terminal, and a log gets a final
                line even if nothing was written before, unless the work fails.
            estimated: Whether the count says how much time is left. It does not where what is counted takes
                different times.
        """
        self._title, self._total, self._unit, self._persistent = title, total, unit, persistent
        self._estimated, self._job = estimated, ""
        self._console = SafeConsole(stderr=True)
        self._enabled = enabled
        self._is_notebook = self._console.is_jupyter
        self._output: Any = None  # the output of the cell that shows the line
        self._draws = self._console.is_terminal and not self._is_notebook
        self._start = time.monotonic()
        self._count, self._note = 0.0, ""
        self._first: tuple[float, float] | None = None  # the first count, and the elapsed seconds when it was set
        self._written: float | None = None
        self._due = delay if self._draws or self._is_notebook else FIRST_LINE_SECONDS

    @cached_property
    def _bar(self) -> _BarWithTable:
        bar = _BarWithTable(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn() if self._unit else TaskProgressColumn(),
            *([TextColumn(self._unit)] if self._unit else []),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if self._estimated else []),
            console=self._console,
            transient=not self._persistent,
            disable=not (self._enabled and self._draws),
        )
        self._task = bar.add_task(self._title, total=self._total, note="")
        return bar

    def __enter__(self) -> Progress:
        if self._due <= 0 and self._draws:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draws:
            if self._bar.live.is_started:
                self._redraw()
                self._bar.stop()
            return
        if self._is_notebook:
            if self._output is not None:
                last = self._line(time.monotonic() - self._start, show_remaining=False)
                self._update_output(last if self._persistent else "")
            return
        wants_line = self._written is not None or (self._persistent and kind is None)
        if self._enabled and wants_line and self._written != self._count:
            self._write_line(time.monotonic() - self._start, show_remaining=False)

    def update(self, count: float, note: str = "") -> None:
        """Set the count, and show it if that is due. All long work does so, so a signal to end is also noticed here.

        Args:
            count: How much is done.
            note: Text to show next to it, such as the loss.
        """
        check_stop()
        self._count, self._note = count, note
        elapsed = time.monotonic() - self._start
        # The speed is measured from the first count on: a resumed run starts with work that it did not do.
        self._first = self._first or (count, elapsed)
        if not self._enabled and _showing_job is not None and self._total:
            _showing_job._show_job(count / self._total)
        if not self._enabled or elapsed < self._due:
            return
        if self._draws:
            self._due = elapsed + REDRAW_SECONDS
            self._bar.start()
            self._redraw()
        elif self._is_notebook:
            self._due = elapsed + NOTEBOOK_SECONDS
            self._update_output(self._line(elapsed))
        else:
            self._due = elapsed + min(max(elapsed / 2, FIRST_LINE_SECONDS), MAX_INTERVAL_SECONDS)
            self._write_line(elapsed)

    def set_total(self, total: float) -> None:
        """Change the count at which the work is finished."""
        self._total = total
        self._redraw()

    def set_note(self, note: str) -> None:
        """Change the text next to the bar until the next update, for work whose steps take long."""
        self._note = note
        self._redraw()

    def set_rows(self, rows: Sequence[tuple[str, str, str, float]]) -> None:
        """Show the work of several processes below the bar on a terminal.

        Args:
            rows: Process, where it runs, what it does, and since how many seconds.
        """
        self._bar.rows = sorted(rows, key=lambda row: (len(row[0]), row[0]))
        self._bar.refresh()

    @contextmanager
    def job(self, name: str) -> Iterator[None]:
        """Show what the block does: bars in it that are not enabled show their share next to this one."""
        global _showing_job
        self._job = name
        self.set_note(name)
        self._due = time.monotonic() - self._start + (REDRAW_SECONDS if self._draws else JOB_SECONDS)
        _showing_job, before = self if self._enabled else None, _showing_job
        try:
            yield
        finally:
            _showing_job = before

    def _show_job(self, share: float) -> None:
        self._note = f"{self._job}: {100 * min(1.0, share):.0f} %"
        if (elapsed := time.monotonic() - self._start) < self._due:
            return
        if self._draws:
            self._due = elapsed + REDRAW_SECONDS
            self._redraw()
        elif self._is_notebook:
            self._due = elapsed + NOTEBOOK_SECONDS
            self._update_output(self._line(elapsed))
        else:
            self._due = elapsed + JOB_SECONDS
            self._write_line(elapsed)

    def pause(self) -> None:
        """Remove the bar until the next update, so that another one can be shown."""
        self._bar.stop()
        self._due = 0.0 if self._draws else self._due

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if self._enabled:
            self._console.print(text, soft_wrap=True)

    def _redraw(self) -> None:
        bar = self._bar  # makes the task
        bar.update(self._task, completed=self._count, total=self._total, note=self._note)

    def _seconds_left(self, elapsed: float) -> float | None:
        if not self._estimated or self._first is None or self._total is None or self._count >= self._total:
            return None
        counted, since = self._count - self._first[0], elapsed - self._first[1]
        return (self._total - self._count) * since / counted if counted > 0 else None

    def _write_line(self, elapsed: float, show_remaining: bool = True) -> None:
        self._written = self._count
        sys.stderr.write(f"{printable(self._line(elapsed, show_remaining))}\n")
        sys.stderr.flush()

    def _update_output(self, text: str) -> None:
        """Show a text in the output of the cell, instead of the one before."""
        from IPython.display import display

        if self._output is None:
            self._output = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._output.update({"text/plain": text}, raw=True)

    def _line(self, elapsed: float, show_remaining: bool = True) -> str:
        of = f" of {self._total:,.0f}" if self._total else ""
        left = self._seconds_left(elapsed) if show_remaining else None
        parts = [
            f"{self._count:,.0f}{of} {self._unit}" if self._unit else "",
            f"{100 * min(1.0, self._count / self._total):.0f} %" if self._total else "",
            self._note.strip(),
            format_duration(elapsed),
            "" if left is None else f"about {format_duration(left)} left",
        ]
        return f"{self._title}: {', '.join(filter(None, parts))}"


def format_duration(seconds: float) -> str:
    """Return a duration as minutes and seconds (``"1:05 min"``), or from an hour on as hours and minutes."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def print_message(text: str, enabled: bool = True) -> None:
    """Print a line to stderr."""
    if enabled:
        SafeConsole(stderr=True).print(text)


def report_text(text: str, enabled: bool, problems: bool) -> None:
    """Print what was read from a text to stderr; if nothing may be printed, log it if there were problems."""
    print_message(text, enabled)
    if problems and not enabled:
        log.warning("%s", text)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Return a context in which transformers logs only errors and shows no progress bars."""
    from transformers.utils import logging as their_logging

    level, bar = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(level)
        if bar:
            their_logging.enable_progress_bar()


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Return a context without the progress bars and warnings of libraries; what is logged by acclimate is kept."""
    from huggingface_hub import utils as hub

    # Only if it is imported, as it takes long; reading a dataset imports it through transformers' trainer before.
    datasets = sys.modules.get("datasets")
    switches = [(hub.are_progress_bars_disabled, hub.disable_progress_bars, hub.enable_progress_bars)]
    if datasets is not None:
        switches.append(
            (datasets.are_progress_bars_disabled, datasets.disable_progress_bars, datasets.enable_progress_bars)
        )
    with warnings.catch_warnings(), silence_transformers():
        warnings.simplefilter("ignore")
        shown = [enable for is_disabled, _, enable in switches if not is_disabled()]
        for _, disable, _ in switches:
            disable()
        try:
            yield
        finally:
            for enable in shown:
                enable()
