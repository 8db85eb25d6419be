"""What a finished cell, or a step of a training, has freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from acclimate.backbone import freed


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="glibc only")
def test_holes_between_what_lives_on_are_returned():
    blocks = [bytearray(2_000) for _ in range(60_000)]
    kept = blocks[::500]
    full = resident()
    del blocks
    freed.return_freed_memory()
    assert resident() < full - 60_000_000
    assert all(len(block) == 2_000 for block in kept)


def test_where_the_system_cannot_nothing_happens(monkeypatch):
    def refuse(_):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    freed.return_freed_memory()


def test_while_training_only_every_few_seconds(monkeypatch):
    times, clock = [], [0.0]
    monkeypatch.setattr(freed, "_trim", lambda: times.append(clock[0]))
    monkeypatch.setattr(freed.time, "monotonic", lambda: clock[0])
    callback = freed.ReturnFreedMemory()
    for second in range(12):
        clock[0] = float(second)
        callback.on_step_end()
    assert times == [5.0, 10.0]
