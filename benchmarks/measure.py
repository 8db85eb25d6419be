"""Interleaved rounds over contenders, the search for a batch size, peak memory, and what machine it was."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from acclimate.device import default_device, has_fast_bf16
from acclimate.files import write_json
from acclimate.study.summary import environment
from benchmarks import worker

ROOT = Path(__file__).resolve().parents[1]
SETTLE_SECONDS = 0.3
"""Idle threads of a contender spin for up to 0.2 s after its turn; the next must not pay for that."""


class ContenderFailed(RuntimeError):
    """A contender ended with an error; its traceback is the message."""


@dataclass(frozen=True)
class Spec:
    """A contender and its work: name, threads, and the fields of ``Job``."""

    name: str
    threads: int
    options: dict[str, Any] = field(default_factory=dict)


class Contender:
    """A running contender; a context manager."""

    def __init__(self, spec: Spec) -> None:
        """Start its process; it builds its model and takes a first step, which is never timed."""
        context = _context(spec.threads)
        self.spec = spec
        self._wire, theirs = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=worker.work, args=(theirs, spec.name, spec.threads, spec.options), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._wire.send(None)
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def turn(self, seconds: float = 0.0, steps: int = 1, tokens: int = 0) -> dict[str, float]:
        """Let it work for at least that much; return seconds, steps, tokens and memory in bytes.

        Raises:
            ContenderFailed: If it did not come through.
        """
        with suppress(OSError):  # it may be gone, but have left a word
            self._wire.send({"seconds": seconds, "steps": steps, "tokens": tokens})
        try:
            answer = self._wire.recv()
        except (EOFError, OSError) as error:
            raise ContenderFailed(f"{self.spec.name} ended without a message (out of memory?)") from error
        if "error" in answer:
            raise ContenderFailed(f"{self.spec.name}:\n{answer['error']}")
        return answer

    def rate(self, seconds: float) -> float:
        """Return real tokens per second over one turn."""
        time.sleep(SETTLE_SECONDS)
        answer = self.turn(seconds)
        return answer["tokens"] / answer["seconds"]


def _context(threads: int) -> multiprocessing.context.BaseContext:
    """Return how processes start: where possible as forks of one that has imported everything and done nothing."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # With several, the Trainer would take them all.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    paths = os.environ.get("PYTHONPATH", "")
    if str(ROOT) not in paths.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), paths]))
    # A driver of an accelerator does not outlive a fork.
    if torch.cuda.is_available() or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.worker"])
    return context


def interleave(
    specs: Mapping[str, Spec], *, rounds: int, seconds: float, warm_up: int, deadline: float | None = None
) -> dict[str, list[float]]:
    """Let every contender take one turn a round, in an order that rotates.

    Args:
        specs: Contenders by any key.
        rounds: How many rounds.
        seconds: Least length of a turn; at least one step.
        warm_up: Steps that each takes before the first round.
        deadline: On the clock of ``time.monotonic``; a round that would end later is not begun, the first excepted.

    Returns:
        For each key its real tokens per second, round by round.
    """
    rates: dict[str, list[float]] = {key: [] for key in specs}
    running: dict[str, Contender] = {}
    try:
        for key, spec in specs.items():
            running[key] = Contender(spec)
            # One after the other: two that build and warm up at once would fight for the cores.
            running[key].turn(steps=warm_up)
        order = list(specs)
        longest = 0.0
        for number in range(rounds):
            begin = time.monotonic()
            if number and deadline is not None and begin + longest > deadline:
                say(f"  stopped after {number} rounds: no time for another")
                break
            for key in order[number % len(order) :] + order[: number % len(order)]:
                rates[key].append(running[key].rate(seconds))
            longest = max(longest, time.monotonic() - begin)
            say(f"  round {number + 1}: " + ", ".join(f"{key} {values[-1]:,.0f}" for key, values in rates.items()))
    finally:
        for contender in running.values():
            contender.__exit__()
    return rates


def best_batch(spec: Spec, batches: Sequence[int], seconds: float) -> tuple[int, dict[str, float]]:
    """Try batch sizes, one process each, two turns each; return the fastest and the median rate of all.

    A size that fails, for example for want of memory, counts as zero.
    """
    found: dict[str, float] = {}
    for batch in batches:
        try:
            with Contender(Spec(spec.name, spec.threads, {**spec.options, "batch": batch})) as contender:
                contender.turn(steps=1)
                found[str(batch)] = statistics.median(contender.rate(seconds) for _ in range(2))
        except ContenderFailed as error:
            say(f"  batch {batch}: {str(error).splitlines()[-1]}")
            found[str(batch)] = 0.0
    return int(max(found, key=lambda size: found[size])), found


def best_attention(spec: Spec, found: dict[str, float], seconds: float) -> str | None:
    """Try the written-out attention at the batch size of ``spec``; return its name if it is faster, else None.

    Args:
        spec: The contender at its best batch size.
        found: The rates of the search for it, which had the attention that transformers takes; the new one is added.
        seconds: Least length of a turn.
    """
    before = found[str(spec.options["batch"])]
    _, other = best_batch(
        Spec(spec.name, spec.threads, {**spec.options, "attention": "eager"}), [spec.options["batch"]], seconds
    )
    (found["eager"],) = other.values()
    return "eager" if found["eager"] > before else None


def peak_memory(spec: Spec, tokens: int) -> float:
    """Return the bytes that a contender takes beyond the imported libraries, in a fresh process.

    Args:
        spec: The contender.
        tokens: Real tokens that it reads at least, first step not counted.
    """
    with Contender(spec) as contender:
        return contender.turn(steps=2, tokens=tokens)["peak"]


def machine(threads: int) -> dict[str, Any]:
    """Describe the machine and its load before anything is measured."""
    device = default_device()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        **environment(),
        "device": device.type,
        "cores": os.cpu_count(),
        "threads": threads,
        "bf16": has_fast_bf16(device.type),
        "load": load,
    }


def keep(result: dict[str, Any], file: Path | None, kind: str) -> Path:
    """Write a result as JSON; return its path, by default one with the time in ``benchmarks/results``."""
    file = file or ROOT / "benchmarks" / "results" / f"{datetime.now():%Y-%m-%d-%H%M}-{kind}.json"
    return write_json(file, result)


def say(text: str) -> None:
    """Tell the one who waits, on stderr: stdout is for the table."""
    print(text, file=sys.stderr, flush=True)
