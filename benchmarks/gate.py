"""Turns: a contender works until its turn is over and then waits, in the middle of its training, for the next."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from acclimate.device import Precision, default_device
from benchmarks.data import make_model


@dataclass(frozen=True)
class Job:
    """What a contender is to work on.

    Attributes:
        shape: Key of ``SHAPES``.
        precision: Of the forward.
        batch: Texts a step.
        folder: An empty folder to work in.
        seed: Of weights, texts and masks.
        count: How many texts there are; they come again when all were read.
        lengths: How long they are, see ``draw_lengths``.
        attention: Attention of the opponents; None leaves it to ``transformers``.
        sample_tokens: Tokens of one measurement of importance.
        rows: Folder of token rows to read instead of random texts.
    """

    shape: str
    precision: Precision
    batch: int
    folder: Path
    seed: int = 0
    count: int = 4_096
    lengths: str = "lognormal"
    attention: str | None = None
    sample_tokens: int = 12_000
    rows: str | None = None

    def model(self) -> PreTrainedModel:
        """Return the plain model on the default device."""
        return torch.nn.Module.to(make_model(self.shape, self.seed, self.attention), default_device())


class Finished(Exception):
    """There are no more turns."""


class Wire(Protocol):
    """One end of a pipe."""

    def send(self, value: Any) -> None:
        """Hand a value over."""
        ...

    def recv(self) -> Any:
        """Wait for a value."""
        ...


def memory() -> dict[str, int]:
    """Return bytes of memory of this process: its own now, files mapped into it now, and both at the peak.

    Elsewhere than on Linux only the peak is known.
    """
    found = {"own": 0, "files": 0, "peak": 0}
    status = Path("/proc/self/status")
    if not status.is_file():
        unit = 1 if sys.platform == "darwin" else 1_024
        return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    keys = {"RssAnon": "own", "RssFile": "files", "RssShmem": "files", "VmHWM": "peak"}
    for line in status.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in keys:
            found[keys[name]] += int(value.split()[0]) * 1_024
    return found


def peak_since(start: dict[str, int]) -> int:
    """Return the most bytes that were in use beyond what was at ``start``; on an accelerator those of its allocator.

    Mapped files do not count: which pages of the libraries are in memory depends on how the process was started.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    now = memory()
    return now["peak"] - now["files"] - (start["own"] or start["peak"])


class Gate:
    """Holds a contender between its turns and counts what it does in them.

    An order is ``{"seconds", "steps", "tokens"}``, all minimums, or None for the end. The turn ends with the first
    step after which all three are reached, so that no step is cut; its time is that of whole steps.
    """

    def __init__(self, wire: Wire) -> None:
        """Start outside of a turn: what the contender builds before its first step is not timed."""
        self.wire = wire
        self.base = memory()
        self._order: dict[str, float] | None = None
        self._start = 0.0
        self._steps = self._tokens = 0

    def step(self, tokens: int) -> None:
        """Say that a step of so many real tokens is over; wait here if the turn is.

        The first call ends the first step, which no turn counts.

        Raises:
            Finished: If there is no other turn.
        """
        if self._order is not None:
            self._steps += 1
            self._tokens += tokens
            done = time.perf_counter() - self._start, self._steps, self._tokens
            if any(value < self._order[key] for key, value in zip(("seconds", "steps", "tokens"), done, strict=True)):
                return
            _synchronise()
            seconds = time.perf_counter() - self._start
            done_here = {"seconds": seconds, "steps": self._steps, "tokens": self._tokens}
            self.wire.send({**done_here, "own": memory()["own"], "peak": peak_since(self.base)})
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what its allocator keeps, the contenders whose turn it is could not have
        self._order = self.wire.recv()
        if self._order is None:
            raise Finished
        self._steps = self._tokens = 0
        _synchronise()
        self._start = time.perf_counter()


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def endless(size: int, batch: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of indices below ``size`` in an order drawn anew for each pass, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(size, generator=generator).tolist()
        yield from (order[start : start + batch] for start in range(0, max(1, size - batch + 1), batch))
