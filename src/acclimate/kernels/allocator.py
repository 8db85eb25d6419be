"""How the C library treats memory that a training step has freed."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback

from acclimate.device import call_libc, malloc_trim

TRIM_SECONDS, TRIM_STEPS = 600.0, 16
"""Training returns free memory to the system when this much CPU time (of all cores) and this many steps have passed.
The next step has to fetch the memory again, which takes a second or more per gigabyte."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``, in bytes: free memory at the end of the heap beyond which it is returned, and the
size from which a block is mapped by itself and returned when it is freed."""
TRAINING_THRESHOLD, DEFAULT_THRESHOLD = 1 << 30, 1 << 25
"""Thresholds during training and otherwise. The latter is what glibc adapts to after the first large blocks."""


class MallocTrimCallback(TrainerCallback):
    """Keeps memory that a step has freed for the next step, and returns it to the system every few minutes.

    With glibc's defaults each step fetches its large blocks anew, which costs a method with large graphs a fifth of
    its time. Without any trimming, a long training holds three times the memory that it uses.
    """

    def __init__(self) -> None:
        """Start counting from now."""
        self._last, self._steps = time.process_time(), 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Keep freed memory from now on."""
        _set_thresholds(TRAINING_THRESHOLD)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Return free memory if it is time."""
        self._steps += 1
        if self._steps >= TRIM_STEPS and time.process_time() - self._last >= TRIM_SECONDS:
            malloc_trim()
            self._last, self._steps = time.process_time(), 0

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Return free memory and restore the default thresholds."""
        _set_thresholds(DEFAULT_THRESHOLD)
        malloc_trim()


def _set_thresholds(size: int) -> None:
    """Let the C library keep free blocks of up to ``size`` bytes, and twice as much at the end of the heap."""
    call_libc("mallopt", MMAP_THRESHOLD, size)
    call_libc("mallopt", TRIM_THRESHOLD, 2 * size - 1)  # the largest C int for the largest size
