"""Waiting for another process: a line after some seconds, an end by a signal, and a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from acclimate.base.errors import GRACE_SECONDS, Stopped, UserError, check_stop, requested_stop

SAY_SECONDS = 2.0
"""Seconds after which a wait is reported."""
SILENT_SECONDS = 600.0
"""Seconds without a sign of life after which a process counts as stopped or unreachable."""

log = logging.getLogger(__name__)


class Wait:
    """One wait, which calls :meth:`pause` between two checks of what it waits for."""

    def __init__(self, what: str, advice: str, limit: float | None = None, say_after: float | None = None) -> None:
        """Start the wait.

        Args:
            what: What is waited for, in a few words.
            advice: What the user can do, as a clause.
            limit: Seconds after the start, or the last :meth:`renew`, after which the wait fails;
                None for :data:`SILENT_SECONDS`.
            say_after: Seconds after which it is reported; None for :data:`SAY_SECONDS`.
        """
        self.what, self.advice, self.limit = what, advice, SILENT_SECONDS if limit is None else limit
        self.say: Callable[[str], None] = lambda line: log.warning("%s", line)
        self._start = self._renewed = time.monotonic()
        self._next = self._start + (SAY_SECONDS if say_after is None else say_after)
        self._stop: float | None = None

    def renew(self) -> None:
        """Note a sign of life: the limit counts from now."""
        self._renewed = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep.

        A step that is to be finished and saved after a signal is waited for, but not longer than a minute.

        Raises:
            Stopped: If a signal asks to end.
            UserError: After the limit.
        """
        check_stop()
        now = time.monotonic()
        if requested_stop():
            self._stop = self._stop or now
            if now - self._stop > GRACE_SECONDS:
                raise Stopped(requested_stop())
        if now - self._renewed > self.limit:
            raise UserError(f"Waited {self.limit / 60:.0f} minutes in vain for {self.what}; {self.advice}.")
        if now >= self._next:
            self._next = now + 10 * (now - self._start)  # rarely, in a wait of hours
            self.say(f"Waiting for {self.what}; {self.advice}.")
        time.sleep(seconds)
