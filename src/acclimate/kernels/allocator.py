"""Memory that is free inside the process: kept for the next step, given back to the system from time to time."""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from typing import Any

from transformers import TrainerCallback

SECONDS_BETWEEN, STEPS_BETWEEN = 600.0, 16
"""While training memory is given back when both have gone by: the next step has to fetch it again, which takes a
second or more for each gigabyte. Seconds of all cores together, so that a process that waits has nothing to fetch."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the settings of ``mallopt`` (glibc): how much that is free at the end of the heap goes back at once, and
from what size on a block is fetched from the system by itself and goes back when it is freed; both in bytes."""
TRAINING_THRESHOLD, DEFAULT_THRESHOLD = 1 << 30, 1 << 25
"""While training, and otherwise: the latter is what glibc itself comes to after the first large blocks."""


def trim_memory() -> None:
    """Give the holes that a finished cell left back to the system, where the C library can do that (glibc).

    Blocks of many sizes come and go in a training, and what lives on among them keeps the rest from being returned:
    without this a process that fine-tunes ten times holds three times what one needs, and neighbours go without.
    """
    gc.collect()
    _malloc_trim()


class MallocTrimCallback(TrainerCallback):
    """Keeps what a step has freed for the next one, and gives it back every few minutes of a training.

    By itself the C library fetches large blocks anew at every step, which costs a method with large graphs a fifth of
    its time; without ever giving back a long training holds three times what is in use.
    """

    def __init__(self) -> None:
        """Wait for a while before the first time."""
        self._last, self._steps = time.process_time(), 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Keep what is freed."""
        _set_thresholds(TRAINING_THRESHOLD)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Give back what is free, if it is time."""
        self._steps += 1
        if self._steps >= STEPS_BETWEEN and time.process_time() - self._last >= SECONDS_BETWEEN:
            _malloc_trim()
            self._last, self._steps = time.process_time(), 0

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Give back what is free, and let blocks go as usual from now on."""
        _set_thresholds(DEFAULT_THRESHOLD)
        _malloc_trim()


def _set_thresholds(size: int) -> None:
    """Let the C library keep free blocks of up to ``size`` bytes, and as much free memory at the end of the heap."""
    _call_libc("mallopt", MMAP_THRESHOLD, size)
    _call_libc("mallopt", TRIM_THRESHOLD, 2 * size - 1)  # an int


def _malloc_trim() -> None:
    _call_libc("malloc_trim", 0)


def _call_libc(function: str, *arguments: int) -> None:
    with suppress(OSError, AttributeError, TypeError):  # another C library, another system
        getattr(ctypes.CDLL(None), function)(*arguments)
