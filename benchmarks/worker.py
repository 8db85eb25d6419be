"""A contender in a process of its own: no switch that one sets changes another, and memory can be told apart."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import opponents, ours
from benchmarks.gate import Finished, Gate, Job

CONTENDERS: dict[str, Callable[[Job, Gate], None]] = {
    "ours-mlm": partial(ours.method, "mlm"),
    "ours-two-views": partial(ours.method, "mlm-simcse", tokens="masked"),
    "ours-dga": partial(ours.method, "dga"),
    "ours-importance": ours.importance,
    "trainer-lines": opponents.trainer_lines,
    "trainer-grouped": opponents.trainer_grouped,
    "loop": opponents.loop,
    "three-forwards": opponents.three_forwards,
    "sample-loop": opponents.sample_loop,
}


METHOD = "method:"
"""What stands before the name of one of our methods where that is the contender."""


def contender(name: str) -> Callable[[Job, Gate], None]:
    """Return the function that works as that contender."""
    if name.startswith(METHOD):
        return partial(ours.method, name.removeprefix(METHOD))
    return CONTENDERS[name]


def work(wire: Connection, name: str, threads: int, options: dict[str, Any]) -> None:
    """Run a contender until it is told to stop; an error goes to the other end as ``{"error": text}``.

    Args:
        wire: This end of the pipe.
        name: Key of :data:`CONTENDERS`.
        threads: Threads of each operation.
        options: Fields of :class:`Job`, all but the folder.
    """
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCLIMATE_CACHE"] = str(Path(folder) / "cache")
        gate = Gate(wire)
        try:
            contender(name)(Job(folder=Path(folder), **options), gate)
        except (Finished, KeyboardInterrupt, EOFError, BrokenPipeError):
            pass  # the other end has what it wants, or is gone
        except Exception:
            wire.send({"error": traceback.format_exc()})
