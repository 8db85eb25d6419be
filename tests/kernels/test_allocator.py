"""Freed memory is kept during training, and returned to the system from time to time."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate import kernels
from acclimate.base import device


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="glibc only")
def test_pages_between_live_blocks_are_returned():
    blocks = [bytearray(2_000) for _ in range(60_000)]
    kept = blocks[::500]
    full = resident()
    del blocks
    device.malloc_trim()
    assert resident() < full - 60_000_000
    assert all(len(block) == 2_000 for block in kept)


def test_nothing_happens_without_glibc(monkeypatch):
    def refuse(_):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    device.malloc_trim()


class Library:
    """A fake C library."""

    def __init__(self):
        self.settings = {}

    def mallopt(self, what, value):
        self.settings[what] = value
        return 1

    def malloc_trim(self, _):
        return 1


@pytest.mark.parametrize(("seconds", "due"), [(100.0, [1_600.0, 3_200.0]), (30.0, [600.0, 1_200.0])])
def test_training_trims_after_some_steps_and_some_seconds_of_work(monkeypatch, seconds, due):
    times, clock = [], [0.0]
    monkeypatch.setattr(kernels, "malloc_trim", lambda: times.append(clock[0]))
    monkeypatch.setattr(kernels.time, "process_time", lambda: clock[0])
    callback = kernels.MallocTrimCallback()
    for step in range(1, 41):
        clock[0] = step * seconds
        callback.on_step_end()
    assert times == due


def test_training_keeps_large_blocks(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    callback = kernels.MallocTrimCallback()
    callback.on_train_begin()
    assert library.settings == {kernels.MMAP_THRESHOLD: 1 << 30, kernels.TRIM_THRESHOLD: (1 << 31) - 1}
    callback.on_train_end()
    assert library.settings == {kernels.MMAP_THRESHOLD: 1 << 25, kernels.TRIM_THRESHOLD: (1 << 26) - 1}


PAGE_FAULTS = """
import ctypes, resource, torch
from acclimate.kernels import MallocTrimCallback

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(40_000_000)  # 160 MB: more than glibc would keep
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

callback = MallocTrimCallback()
faults()
usual = faults()
callback.on_train_begin()
faults()
print(usual, faults())
callback.on_train_end()
print(faults())
"""


@pytest.mark.skipif(not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")), reason="glibc only")
@pytest.mark.slow
def test_the_next_step_reuses_a_freed_block():
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True)
    usual, training, after = map(int, done.stdout.split())
    assert training < usual / 10
    assert after > usual / 10  # returned at the end
