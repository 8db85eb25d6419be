"""Measure what a step of each method costs, as a multiple of plain MLM on the same texts; print a table.

python benchmarks/methods.py               # all methods, MiniLM shape, bf16 where the hardware has it
python benchmarks/methods.py dga mlm-taco  # some
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from acclimate.device import choose_precision
from acclimate.training.method import lookup, names
from benchmarks.measure import Spec, interleave, keep, machine, say
from benchmarks.worker import METHOD

BASE = "mlm"
UNMEASURED = ("tapter",)
"""Methods that need a real vocabulary; that of the benchmark has words without meaning."""
TOGETHER = 4
"""Methods beside the base that share their rounds: each keeps a process with a model."""


def measure(chosen: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return, for each method, the cost of a step in the time of a step of plain MLM, round by round."""
    precision = options.precision or choose_precision("auto")
    job = {"shape": options.shape, "precision": precision, "batch": options.batch}
    begin, costs = time.monotonic(), {}
    for first in range(0, len(chosen), TOGETHER):
        group = [BASE, *chosen[first : first + TOGETHER]]
        specs = {name: Spec(METHOD + name, options.threads, job) for name in group}
        rates = interleave(specs, rounds=options.rounds, seconds=options.seconds, warm_up=2)
        for name in group[1:]:
            rounds = [base / mine for base, mine in zip(rates[BASE], rates[name], strict=True)]
            costs[name] = {"cost": statistics.median(rounds), "rounds": rounds, "tokens_per_second": rates[name]}
    where = machine(options.threads)
    minutes = round((time.monotonic() - begin) / 60, 1)
    return {"date": f"{datetime.now():%Y-%m-%d}", "machine": where, "job": job, "minutes": minutes, "methods": costs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("methods", nargs="*", help="names of methods (default: all that train)")
    add("--shape", default="minilm")
    add("--precision", choices=["fp32", "bf16"])
    add("--batch", type=int, default=64, help="texts a step")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=4.0, help="least length of a turn")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>-methods.json)")
    options = parser.parse_args(arguments)
    kinds = {name: lookup(name) for name in names() if name not in (BASE, *UNMEASURED)}
    chosen = options.methods or [name for name, kind in kinds.items() if kind.trains and not kind.needs_task]
    result = measure(chosen, options)
    file = keep(result, options.json, "methods")
    print(f"{'method':14s} {'cost':>6s}  range")
    for name, found in result["methods"].items():
        print(f"{name:14s} {found['cost']:5.2f} x  {min(found['rounds']):.2f} to {max(found['rounds']):.2f}")
    say(f"Written to {file}, after {result['minutes']} minutes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
