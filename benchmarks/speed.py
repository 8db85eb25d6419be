"""Compare the speed and memory of ``acclimate.adapt`` with ``transformers.Trainer``; print a table, write JSON.

    python benchmarks/speed.py                            # all rows, at most 90 minutes on two idle cores
    python benchmarks/speed.py --quick                    # a rough look, about 10 minutes
    python benchmarks/speed.py --rows cost-               # each method relative to our own MLM
    python benchmarks/speed.py --preload libtcmalloc.so.4 # another allocator, for all contenders

Rules: every measurement is a new process, and only one exists at a time. All contenders of a row read the same texts
with the same number of texts (or, in blocks, at least as many tokens) per optimizer step. The others use the
micro-batch size and attention implementation that a search finds fastest. In each round every contender is measured
once. If the median of the rounds differs by more than 15 % from what the search measured, the row is marked as failed,
and so is the run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers

from acclimate.adaptation.method import names
from acclimate.base.device import default_device, has_fast_bf16
from acclimate.base.errors import UserError
from acclimate.base.files import read_json, write_json
from acclimate.labs.bench.shapes import SHAPES, write_inputs
from acclimate.study.summary import environment
from benchmarks.contenders import BLOCK, Job

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "dev" / "performance.md"
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
TOLERANCE = 0.15
"""Maximum relative difference between the rate in the rounds and in the search."""
MICRO_SIZES = (4, 8, 16, 32, 64, 128, 256)
MEAN_LENGTH = 74  # tokens per text; see draw_lengths
TITLES = {"minilm": "MiniLM shape", "base": "RoBERTa-base shape"}


@dataclass(frozen=True)
class Row:
    """One comparison: ``ours`` against ``theirs`` (names of contenders) on a shape."""

    key: str
    work: str
    against: str
    shape: str
    ours: str
    theirs: str


def _rows() -> list[Row]:
    trainers = {
        "trainer-by-length": "Trainer, group_by_length",
        "trainer-random": "Trainer, random order",
        "trainer-blocks": f"Trainer, blocks of {BLOCK}",
    }
    rows = [
        Row(f"mlm-{shape}-{name.removeprefix('trainer-')}", "MLM", against, shape, "acclimate:mlm", name)
        for shape in TITLES
        for name, against in trainers.items()
        if shape == "minilm" or name != "trainer-blocks"
    ]
    rows.append(Row("dga-minilm-naive", "DGA", "naive DGA, 3 forwards", "minilm", "acclimate:dga", "naive-dga"))
    rows += [Row(f"dga-{shape}-mlm", "DGA", "our MLM", shape, "acclimate:dga", "acclimate:mlm") for shape in TITLES]
    return rows


ROWS = _rows()


def cost_rows() -> list[Row]:
    """Return one row per training method: its speed relative to our own MLM."""
    chosen = [name for name in names() if name not in ("none", "lm", "mlm", "dapt+tapt", "tapter", "selective")]
    return [Row(f"cost-{name}", name, "our MLM", "minilm", f"acclimate:{name}", "acclimate:mlm") for name in chosen]


@dataclass
class Settings:
    """How much is measured; see ``parse``."""

    quick: bool
    rounds: int
    seconds: float
    steps: int
    minutes: float
    batch: int | None
    shape: str | None
    texts: int
    threads: int
    preload: str | None


class ContenderFailed(RuntimeError):
    """A process failed; the message is the end of its output."""


class Bench:
    """Measures rows; contenders of one shape and precision share their rounds."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.contenders: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}

    def run(self, rows: Sequence[Row], precisions: Sequence[str]) -> None:
        """Measure all rows in all precisions; each shape and precision gets an equal share of the time left."""
        end = time.monotonic() + 60 * self.settings.minutes
        groups = [(shape, precision) for shape in dict.fromkeys(row.shape for row in rows) for precision in precisions]
        for number, (shape, precision) in enumerate(groups):
            now = time.monotonic()
            deadline = now + max(0.0, end - now) / (len(groups) - number)
            self._group(shape, precision, [row for row in rows if row.shape == shape], deadline)

    def _group(self, shape: str, precision: str, rows: Sequence[Row], deadline: float) -> None:
        say(f"{shape}, {precision}")
        jobs: dict[str, Job] = {}
        half = (time.monotonic() + deadline) / 2
        contenders = list(dict.fromkeys(name for row in rows for name in (row.ours, row.theirs)))
        for number, name in enumerate(contenders):
            now = time.monotonic()
            share = max(0.0, half - now) / (len(contenders) - number)
            try:
                jobs[name] = self._search(name, shape, precision, now + share)
            except ContenderFailed as error:
                self._fail(f"{shape}/{precision}/{name}", error)
        self._measure_rounds(jobs, shape, precision, deadline)
        for row in rows:
            entries = [self.contenders.get(f"{shape}/{precision}/{name}") for name in (row.ours, row.theirs)]
            if all(entry is not None and entry.get("tokens_per_second") for entry in entries):
                self.rows.append(compare(row, precision, *entries))  # type: ignore[arg-type]

    def _search(self, name: str, shape: str, precision: str, deadline: float) -> Job:
        """Return the fastest setting of a contender, and store all rates that were measured to find it.

        After ``deadline`` no further setting is tried, so that half of the time remains for the rounds.
        """
        job = self._first_job(name, shape, precision)
        found: dict[tuple[int, str | None], dict[str, Any]] = {}

        def try_out(micro: int, attention: str | None = None) -> float:
            if (micro, attention) not in found:
                found[micro, attention] = self._try_out(replace(job, micro=micro, attention=attention))
            return found[micro, attention]["tokens_per_second"]

        if name.startswith("acclimate:"):
            best = (job.micro, None)
            try_out(*best)
        else:
            sizes = [size for size in MICRO_SIZES if job.batch % size == 0]
            place = min(len(sizes) - 1, 1)
            for step in () if self.settings.quick else (-1, 1):  # towards smaller sizes first, then larger ones
                while (
                    0 <= place + step < len(sizes)
                    and time.monotonic() < deadline
                    and try_out(sizes[place + step]) > try_out(sizes[place])
                ):
                    place += step
            if not self.settings.quick and time.monotonic() < deadline:
                try_out(sizes[place], "eager")
            try_out(sizes[place])
            best = max(found, key=lambda setting: found[setting]["tokens_per_second"])
        if not found[best]["tokens_per_second"]:
            raise ContenderFailed(found[best]["error"])
        search = {f"{micro} {attention or 'default'}": entry["tokens_per_second"] for (micro, attention), entry in
                  found.items()}  # fmt: skip
        self.contenders[f"{shape}/{precision}/{name}"] = {
            "batch": job.batch,
            "micro": None if name.startswith("acclimate:") else best[0],
            "attention": best[1],
            "allocator": found[best]["allocator"],
            "search": search,
            "searched": found[best]["tokens_per_second"],
            "tokens_per_second": [],
            "peak_bytes": [],
        }
        say(f"  {name}: " + ", ".join(f"{setting} {rate:,.0f}" for setting, rate in search.items()))
        return replace(job, micro=best[0], attention=best[1])

    def _try_out(self, job: Job) -> dict[str, Any]:
        try:
            return self._measure(job)
        except ContenderFailed as error:  # for example out of memory: another size may fit
            return {"tokens_per_second": 0.0, "error": str(error)}

    def _first_job(self, name: str, shape: str, precision: str) -> Job:
        settings = self.settings
        used = settings.shape or shape
        folder = self.folder / used
        if not folder.is_dir():
            folder.mkdir(parents=True)
            write_inputs(folder, used, settings.texts, seed=0)
        batch = settings.batch or SHAPES[used].batch
        if name == "trainer-blocks":
            batch = 4 * math.ceil(batch * MEAN_LENGTH / BLOCK / 4)
        return Job(
            name=name,
            folder=str(folder),
            precision=precision,  # type: ignore[arg-type]
            batch=batch,
            threads=settings.threads,
            seconds=settings.seconds,
            steps=settings.steps,
        )

    def _measure_rounds(self, jobs: dict[str, Job], shape: str, precision: str, deadline: float) -> None:
        longest = 0.0
        for number in range(self.settings.rounds):
            begin = time.monotonic()
            if number >= 2 and begin + longest > deadline:
                say(f"  stopped after {number} rounds: the time is used up")
                return
            start = number % max(1, len(jobs))
            for name in [*list(jobs)[start:], *list(jobs)[:start]]:
                key = f"{shape}/{precision}/{name}"
                try:
                    measured = self._measure(jobs[name])
                except ContenderFailed as error:
                    self._fail(key, error)
                    del jobs[name], self.contenders[key]
                    continue
                for value in ("tokens_per_second", "peak_bytes"):
                    self.contenders[key][value].append(measured[value])
                say(f"  round {number + 1}, {name}: {measured['tokens_per_second']:,.0f} tokens/s")
            longest = max(longest, time.monotonic() - begin)

    def _measure(self, job: Job) -> dict[str, Any]:
        """Run one process and wait for its result.

        Raises:
            ContenderFailed: If it fails.
        """
        threads = str(job.threads)
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "ACCLIMATE_CACHE": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            # With several devices the Trainer would use all of them.
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        }
        if self.settings.preload:
            variables["LD_PRELOAD"] = self.settings.preload
        command = [sys.executable, "-m", "benchmarks.contenders", json.dumps(asdict(job))]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ContenderFailed(done.stderr.strip()[-2_000:] or f"ended with status {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])

    def _fail(self, key: str, error: Exception) -> None:
        say(f"  {key} failed: {str(error).splitlines()[-1]}")
        self.failed[key] = str(error)


def compare(row: Row, precision: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the result: the ratio of the rates, round by round, and whether both sides were stable."""
    rates = [ours["tokens_per_second"], theirs["tokens_per_second"]]
    # A contender that failed in a later round has fewer rates.
    ratios = [one / other for one, other in zip(*rates, strict=False)]
    drift = [statistics.median(side["tokens_per_second"]) / side["searched"] - 1 for side in (ours, theirs)]
    return {
        **asdict(row),
        "precision": precision,
        "batch": ours["batch"],
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "rounds": len(ratios),
        "tokens_per_second": [statistics.median(values) for values in rates],
        "peak_bytes": [statistics.median(side["peak_bytes"]) for side in (ours, theirs)],
        "drift": drift,
        "stable": all(abs(value) <= TOLERANCE for value in drift),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    ours, theirs = row["tokens_per_second"]
    memory = [f"{value / 2**20:,.0f}" for value in row["peak_bytes"]]
    return [
        f"{row['work']}, {TITLES[row['shape']]}", row["against"], row["precision"], f"{row['ratio']:.2f} x",
        f"{row['lowest']:.2f} to {row['highest']:.2f}", f"{ours:,.0f}", f"{theirs:,.0f}", *memory,
        "" if row["stable"] else "FAILED: search and rounds differ by " + " and ".join(
            f"{value:+.0%}" for value in row["drift"]),
    ]  # fmt: skip


HEAD = ["work", "compared with", "precision", "speed", "range", "ours, tokens/s", "theirs", "ours, MiB", "theirs", ""]


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table with aligned columns."""
    lines = [HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Return the section for the documentation page: machine, versions and the table.

    A row that a later result has, too, replaces that of the earlier one.
    """
    lines: list[str] = []
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        where, how = result["machine"], result["settings"]
        allocators = {
            side: ", ".join(sorted({
                entry["allocator"] for key, entry in result["contenders"].items()
                if ("/acclimate:" in key) == (side == "ours")
            }))
            for side in ("ours", "others")
        }  # fmt: skip
        lines += [
            f"{result['date']}, {where['processor']}, {where['threads']} threads"
            + (f", {where['accelerator']}" if where.get("accelerator") else "")
            + f"; torch {where['torch']}, transformers {where['transformers']}"
            + f"; allocator: ours {allocators['ours']}, others {allocators['others']}"
            + f"; {'quick look, ' if how['quick'] else ''}{result['minutes']:.0f} minutes"
            + f", load at the start {where['load']}; {len(result['rows'])} rows.",
            "",
        ]
        if result["failed"]:
            lines += [f"Failed: {', '.join(sorted(result['failed']))}.", ""]
        rows |= {(row["key"], row["precision"]): row for row in result["rows"]}
    lines += [f"| {' | '.join(HEAD)} |", "|---|---|---|--:|---|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows.values())])


def update_page(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """Replace the text between the markers ``measured:begin`` and ``measured:end`` of a page.

    Raises:
        UserError: If the page has no markers.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"'{page}' has no lines '{BEGIN}' and '{END}'; add them where the table belongs.")
    page.write_text(f"{before}{begin}\n\n{markdown(results)}\n\n{end}{after}", encoding="utf-8")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="MiniLM shape only, two short rounds, 16 texts per step, no search")
    add("--rows", action="append", metavar="TEXT", help="only rows whose name contains TEXT (repeatable)")
    add("--precision", choices=["fp32", "bf16"], help="only this precision")
    add("--rounds", type=int, help="maximum number of rounds (default 5, quick 2)")
    add(
        "--seconds",
        type=float,
        help="minimum seconds per measurement, three steps at least (default 10, quick 1 and one step)",
    )
    add("--minutes", type=float, help="time limit; search takes half; at least two rounds (default 90, quick 10)")
    add("--batch", type=int, help="texts per optimizer step (default: 64, RoBERTa-base 32, quick 16)")
    add("--threads", type=int, help="threads per contender (default: as torch chooses)")
    add("--preload", metavar="FILE", help="shared library of an allocator, preloaded into every contender")
    add("--shape", choices=sorted(SHAPES), help="use this shape in all rows (tests use tiny)")
    add("--json", type=Path, help="output file (default benchmarks/results/DATE-speed.json)")
    add("--from-json", type=Path, nargs="+", help="measure nothing; read these results")
    add("--update-docs", action="store_true", help="write the table into docs/dev/performance.md")
    return parser.parse_args(arguments)


def choose_rows(wanted: Sequence[str] | None, quick: bool = False) -> list[Row]:
    """Return the rows whose name contains one of ``wanted``.

    By default these are all rows except the costs of methods, and with ``quick`` only those of the MiniLM shape.

    Raises:
        UserError: If there is none.
    """
    rows = (
        ROWS if wanted is None else [row for row in [*ROWS, *cost_rows()] if any(part in row.key for part in wanted)]
    )
    if not rows:
        known = ", ".join(row.key for row in [*ROWS, *cost_rows()])
        raise UserError(f"No row matches {', '.join(wanted or ())}. Rows: {known}.")
    return rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the rows that the options select; return the result as plain values for JSON."""
    quick = options.quick
    rows = choose_rows(options.rows, quick)
    settings = Settings(
        quick=quick,
        rounds=options.rounds or (2 if quick else 5),
        seconds=options.seconds if options.seconds is not None else 1.0 if quick else 10.0,
        steps=1 if quick else 3,
        minutes=options.minutes or (10.0 if quick else 90.0),
        batch=options.batch or (16 if quick else None),
        shape=options.shape,
        texts=512 if quick else 4_096,
        threads=options.threads or torch.get_num_threads(),
        preload=options.preload,
    )
    device = default_device()
    load = round(os.getloadavg()[0], 1)
    if load > 0.3:
        say(f"The machine is busy (load {load}): do not publish these figures.")
    precisions = [options.precision] if options.precision else ["fp32", "bf16"]
    if "bf16" in precisions and not has_fast_bf16(device.type):
        say("This device has no fast bfloat16 arithmetic; only fp32 is measured.")
        precisions.remove("bf16")
    transformers.logging.disable_progress_bar()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(settings, Path(folder))
        bench.run(rows, precisions)
    return {
        "date": datetime.now().astimezone().date().isoformat(),
        "machine": {**environment(), "device": device.type, "threads": settings.threads, "load": load},
        "settings": asdict(settings),
        "minutes": round((time.monotonic() - begin) / 60, 2),
        "contenders": bench.contenders,
        "rows": bench.rows,
        "failed": bench.failed,
    }


def say(text: str) -> None:
    """Report progress on stderr; stdout is for the table."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write JSON; return 1 if a contender failed or, in a full run, a row is unstable."""
    options = parse(arguments)
    try:
        if options.from_json is not None:
            results = [read_json(file) for file in options.from_json]
        else:
            results = [measure(options)]
            default = ROOT / "benchmarks" / "results" / f"{datetime.now():%Y-%m-%d-%H%M}-speed.json"
            file = write_json(options.json or default, results[0])
            say(f"Written to {file} after {results[0]['minutes']:.1f} minutes.")
        print(text_table([row for result in results for row in result["rows"]]))
        if options.update_docs:
            update_page(PAGE, results)
    except UserError as error:
        say(str(error))
        return 2
    unstable = any(
        not row["stable"] for result in results if not result["settings"]["quick"] for row in result["rows"]
    )
    return int(unstable or any(result["failed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
