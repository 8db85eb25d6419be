"""Memory that is free inside the process, given back between the cells of a study."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def return_freed_memory() -> None:
    """Give the holes that a finished cell left back to the system, where the C library can do that (glibc).

    Blocks of many sizes come and go in a training, and what lives on among them keeps the rest from being returned:
    without this a process that fine-tunes ten times holds three times what one needs, and neighbours go without.
    """
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # another C library, another system
        ctypes.CDLL(None).malloc_trim(0)
