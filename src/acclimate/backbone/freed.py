"""Memory that is free inside the process, given back to the system: between cells of a study, and while training."""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from typing import Any

from transformers import TrainerCallback

SECONDS_BETWEEN = 5.0
"""While training; what is given back has to be fetched again, which costs a step some milliseconds."""


def return_freed_memory() -> None:
    """Give the holes that a finished cell left back to the system, where the C library can do that (glibc).

    Blocks of many sizes come and go in a training, and what lives on among them keeps the rest from being returned:
    without this a process that fine-tunes ten times holds three times what one needs, and neighbours go without.
    """
    gc.collect()
    _trim()


class ReturnFreedMemory(TrainerCallback):
    """Gives them back every few seconds of a training: without it a long one holds three times what is in use."""

    def __init__(self) -> None:
        """Wait for a while before the first time."""
        self._last = time.monotonic()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Give back what is free, if it is time."""
        if time.monotonic() - self._last >= SECONDS_BETWEEN:
            _trim()
            self._last = time.monotonic()


def _trim() -> None:
    with suppress(OSError, AttributeError, TypeError):  # another C library, another system
        ctypes.CDLL(None).malloc_trim(0)
