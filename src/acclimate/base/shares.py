"""Work on numbered items that forked processes share; its results are in shared memory or in files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import wait

from acclimate.base.errors import UserError, check_stop


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_work(
    work: Callable[[int, int], None], total: int, block: int, processes: int, report: Callable[[int], None]
) -> None:
    """Call ``work(first, stop)`` for every block of numbers below ``total``, each in one of several processes.

    ``report`` is called with the number of items that are done. Outside Linux there is one process.

    Raises:
        UserError: If a process has ended before its work.
    """
    count = min(processes, -(-total // block)) if sys.platform == "linux" else 1
    if count <= 1:
        for first in range(0, total, block):
            work(first, min(first + block, total))
            report(min(first + block, total))
        return
    done = multiprocessing.RawArray("q", count)

    def run(number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what a signal means
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for first in range(number * block, total, count * block):
            work(first, min(first + block, total))
            done[number] += min(block, total - first)

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run, args=(number,), daemon=True) for number in range(count)]
    with ExitStack() as stack:
        for child in children:
            child.start()
            stack.callback(child.join)
            stack.callback(child.terminate)
        running = [child.sentinel for child in children]
        while running:
            wait(running, 0.1)
            check_stop()
            report(sum(done))
            running = [child.sentinel for child in children if child.exitcode is None]
            if bad := [child.exitcode for child in children if child.exitcode]:  # after it is known which have ended
                raise UserError(f"A process has ended with the code {bad[0]}; see above, or give it more memory.")
        report(total)
