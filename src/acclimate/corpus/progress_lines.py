"""How far a count has come, in lines of their own: for logs, where no bar can be drawn."""

from __future__ import annotations

import sys
import time

FIRST, LAST = 10.0, 300.0
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
        self._next = FIRST
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
            self._next = elapsed + min(max(elapsed / 2, FIRST), LAST)
            self._write(note, elapsed, self._rest(elapsed))

    def end(self, note: str = "", *, always: bool = False) -> None:
        """Write a last line if there was one before that says less, or ``always`` if there was none."""
        if always if self._told is None else self._told != self._count:
            self._write(note, time.monotonic() - self._start, None)

    def _rest(self, elapsed: float) -> float | None:
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
            span(elapsed),
            "" if rest is None else f"about {span(rest)} left",
        ]
        sys.stderr.write(f"{self._title}: {', '.join(filter(None, said))}\n")
        sys.stderr.flush()


def span(seconds: float) -> str:
    """Return a time as minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
