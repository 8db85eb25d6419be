"""Measure our training against what people run today; print the table of goals and write it as JSON.

python benchmarks/speed.py                # all rows, about an hour on two cores: leave the machine alone meanwhile
python benchmarks/speed.py --quick        # under five minutes
python benchmarks/speed.py --rows dga     # rows whose name contains "dga"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from acclimate.device import default_device
from acclimate.errors import UserError
from acclimate.files import read_json
from benchmarks.measure import (
    ContenderFailed,
    Spec,
    best_attention,
    best_batch,
    interleave,
    keep,
    machine,
    peak_memory,
    say,
)
from benchmarks.rows import ROWS, Row, judge
from benchmarks.table import in_order, text_table, update_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
SEARCHED = ("trainer-lines", "trainer-grouped", "loop", "three-forwards")
"""Contenders whose batch size is searched; the others have none, or are ours."""
USUAL_BATCH = {"cpu": 8, "cuda": 64}
"""The opponents' batch size where ``--quick`` does not search."""


@dataclass
class Settings:
    """How long and how thoroughly to measure; see ``parse``."""

    quick: bool
    rounds: int
    seconds: float
    warm_up: int
    minutes: float | None
    batch: int
    batches: list[int]
    search_seconds: float
    sample_tokens: int
    memory_tokens: int
    lengths: str
    attention: str | None
    threads: int
    seed: int
    count: int = 4_096


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="three short rounds, small steps, no search for batch sizes")
    add("--rows", action="append", metavar="TEXT", help="only the row of that name, else all that contain it")
    add("--precision", choices=["fp32", "bf16"], help="only this column")
    add("--threads", type=int, help="threads of every contender (default: what torch chooses)")
    add("--rounds", type=int, help="interleaved rounds (default 5, quick 3)")
    add("--seconds", type=float, help="least length of a turn (default 10, quick 1)")
    add("--minutes", type=float, help="begin no round that would end later, one a group excepted (quick: 4.5)")
    add("--batch", type=int, help="texts a step of ours (default 64, quick 16; 256 on an accelerator)")
    add("--batches", type=int, nargs="+", help="batch sizes that the opponents may choose from")
    add("--lengths", default="lognormal", help="lognormal, fixed:N, or corpus:NAME for those of a real corpus")
    add("--attention", choices=["sdpa", "eager"], help="attention of the opponents (default: what transformers takes)")
    add("--shape", help="use this shape in all rows (for tests: tiny)")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>.json)")
    add("--update-docs", action="store_true", help="put the table into docs/performance.md")
    add("--from-json", type=Path, nargs="+", help="measure nothing; make one table of the results in these files")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Settings:
    """Fill in the defaults, which depend on the device."""
    kind, quick = default_device().type, options.quick
    on_cpu = kind == "cpu"

    def given(value: Any, full: Any, short: Any) -> Any:
        return value if value is not None else short if quick else full

    usual = USUAL_BATCH.get(kind, USUAL_BATCH["cuda"])
    return Settings(
        quick=quick,
        rounds=given(options.rounds, 5, 3),
        seconds=given(options.seconds, 10.0, 1.0),
        warm_up=2 if on_cpu and not quick else 1 if on_cpu else 5,
        minutes=given(options.minutes, None, 4.5),
        batch=given(options.batch, 64, 16) if on_cpu else options.batch or 256,
        batches=given(options.batches, [4, 8, 16, 32] if on_cpu else [16, 32, 64, 128, 256], [usual]),
        search_seconds=4.0,
        sample_tokens=3_000 if quick else 12_000,
        memory_tokens=2_000 if quick else 10_000,
        lengths=options.lengths,
        attention=options.attention,
        threads=options.threads or torch.get_num_threads(),
        seed=options.seed,
    )


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    """Return the rows to measure.

    Raises:
        UserError: If none is left.
    """
    rows = [row for row in ROWS if row.quick or not options.quick or options.rows]
    if options.rows:
        exact = {row.key for row in ROWS} & set(options.rows)
        rest = set(options.rows) - exact
        rows = [row for row in rows if row.key in exact or any(part in row.key for part in rest)]
    if not rows:
        raise UserError(f"No row has such a name. There are: {', '.join(row.key for row in ROWS)}.")
    return rows


class Bench:
    """Measures rows, group by group: contenders of the same shape and precision share their rounds."""

    def __init__(self, settings: Settings, shape: str | None) -> None:
        self.settings, self.shape = settings, shape
        self.batch_sizes: dict[str, dict[str, Any]] = {}
        self.contenders: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []

    def run(self, rows: Sequence[Row], precisions: Sequence[str]) -> None:
        """Measure all rows in all precisions that they have a goal for."""
        begin = time.monotonic()
        groups = dict.fromkeys(
            (row.shape, precision) for precision in precisions for row in rows if precision in row.goals
        )
        for number, (shape, precision) in enumerate(groups):
            members = [row for row in rows if row.shape == shape and precision in row.goals]
            deadline = None
            if self.settings.minutes is not None:
                now, end = time.monotonic(), begin + 60 * self.settings.minutes
                deadline = now + max(0.0, end - now) / (len(groups) - number)
            try:
                self._group(shape, precision, members, deadline)
            except ContenderFailed as error:
                say(str(error))
                self.failed[f"{shape} {precision}"] = str(error)
        order = {row.key: place for place, row in enumerate(rows)}
        self.rows.sort(key=lambda row: (order[row["key"]], row["precision"] != "fp32"))

    def _group(self, shape: str, precision: str, rows: Sequence[Row], deadline: float | None) -> None:
        say(f"{shape}, {precision}")
        specs = {
            name: self._spec(name, shape, precision)
            for name in dict.fromkeys(name for row in rows for name in (row.ours, row.theirs))
        }
        for row in (row for row in rows if row.kind == "memory"):
            sides = [self._memory(name, specs[name], shape, precision) for name in (row.ours, row.theirs)]
            self.rows.append(judge(row, precision, [sides[0]], [sides[1]]))
        timed = [row for row in rows if row.kind != "memory"]
        try:
            self._timed(shape, precision, timed, specs, deadline)
        except ContenderFailed as error:
            if len(timed) < 2:
                raise
            say(f"{error}\nSo row by row: all at once are perhaps too much for the memory of this machine.")
            for row in timed:
                try:
                    self._timed(shape, precision, [row], specs, deadline, f"/{row.key}")
                except ContenderFailed as alone:
                    say(str(alone))
                    self.failed[f"{shape} {precision} {row.key}"] = str(alone)

    def _timed(
        self,
        shape: str,
        precision: str,
        rows: Sequence[Row],
        specs: dict[str, Spec],
        deadline: float | None,
        mark: str = "",
    ) -> None:
        """Measure rows in the same rounds; ``mark`` tells their rates from those of other rounds."""
        needed = {name: specs[name] for row in rows for name in (row.ours, row.theirs)}
        if not needed:
            return
        rates = interleave(
            needed,
            rounds=self.settings.rounds,
            seconds=self.settings.seconds,
            warm_up=self.settings.warm_up,
            deadline=deadline,
        )
        for name, values in rates.items():
            self._entry(name + mark, shape, precision)["tokens_per_second"] = values
        self.rows += [judge(row, precision, rates[row.ours], rates[row.theirs]) for row in rows]

    def _entry(self, name: str, shape: str, precision: str) -> dict[str, Any]:
        return self.contenders.setdefault(f"{shape}/{precision}/{name}", {})

    def _memory(self, name: str, spec: Spec, shape: str, precision: str) -> float:
        entry = self._entry(name, shape, precision)
        if "peak_bytes" not in entry:
            entry["peak_bytes"] = peak_memory(spec, self.settings.memory_tokens)
            say(f"  {name}: peak {entry['peak_bytes'] / 2**20:,.0f} MiB")
        return entry["peak_bytes"]

    def _spec(self, name: str, shape: str, precision: str) -> Spec:
        """Return the contender at its best batch size."""
        settings = self.settings
        options = {
            "shape": self.shape or shape,
            "precision": precision,
            "batch": 1 if name == "sample-loop" else settings.batch,
            "seed": settings.seed,
            "count": settings.count,
            "lengths": settings.lengths,
            "attention": settings.attention,
            "sample_tokens": settings.sample_tokens,
        }
        spec = Spec(name, settings.threads, options)
        if name in SEARCHED:
            found: dict[str, float] = {}
            options["batch"] = settings.batches[0]
            if len(settings.batches) > 1:
                options["batch"], found = best_batch(spec, settings.batches, settings.search_seconds)
                if settings.attention is None:
                    options["attention"] = best_attention(spec, found, settings.search_seconds)
            self.batch_sizes[f"{shape}/{precision}/{name}"] = {"chosen": options["batch"], "tokens_per_second": found}
            chosen = f"batch {options['batch']}, attention {options['attention'] or 'as it comes'}"
            say(f"  {name}: {chosen}" + ("" if found else " (not searched)"))
        self._entry(name, shape, precision).update(batch=options["batch"], attention=options["attention"])
        return spec


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what the options ask for and return the result as plain values."""
    settings = settings_of(options)
    rows = chosen_rows(options)
    where = machine(settings.threads)
    if where["load"] is not None and where["load"] > 0.3:
        say(f"The machine is not quiet (load {where['load']:.1f}): do not publish these figures.")
    precisions = [options.precision] if options.precision else ["fp32", "bf16"]
    if "bf16" in precisions and not where["bf16"]:
        say("This device does not multiply bfloat16 in hardware: no bf16 column.")
        precisions.remove("bf16")
    bench, begin = Bench(settings, options.shape), time.monotonic()
    bench.run(rows, precisions)
    return {
        "date": datetime.now().astimezone().date().isoformat(),
        "machine": where,
        "settings": asdict(settings),
        "minutes": round((time.monotonic() - begin) / 60, 2),
        "batch_sizes": bench.batch_sizes,
        "contenders": bench.contenders,
        "rows": bench.rows,
        "failed": bench.failed,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status: 1 if a contender failed."""
    options = parse(arguments)
    try:
        if options.from_json is not None:
            results = [read_json(file) for file in options.from_json]
        else:
            results = [measure(options)]
            file = keep(results[0], options.json, "speed")
            say(f"Written to {file}, after {results[0]['minutes']:.1f} minutes.")
        print(text_table(in_order(results)))
        if options.update_docs:
            update_page(PAGE, results)
    except UserError as error:
        say(str(error))
        return 2
    return 1 if any(result["failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
