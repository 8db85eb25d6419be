"""Measure how the cost of our training grows: with the length of texts, texts a step, views, and the corpus.

    python benchmarks/scaling.py              # up to a corpus of 10^9 tokens (2.3 GB of disk), about 20 minutes
    python benchmarks/scaling.py --quick      # up to 10^7 tokens, a few minutes

Writes a JSON file and one plot beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import numpy as np
import torch

from acclimate.corpus.token_dataset import TokenDatasetWriter
from acclimate.device import choose_precision
from benchmarks.data import draw_lengths, shape_of
from benchmarks.gate import memory
from benchmarks.measure import Contender, Spec, interleave, keep, machine, say

CHUNK = 2_000
"""Texts that are made and written at once."""


def write_corpus(folder: Path, tokens: int, shape: str, seed: int) -> dict[str, float]:
    """Write token rows of random texts as a stream; return tokens, seconds and own memory in bytes at the end."""
    rng, vocabulary, begin = np.random.default_rng([seed, 9]), shape_of(shape).vocabulary, time.perf_counter()
    with TokenDatasetWriter(folder, vocabulary - 1) as writer:
        while writer.tokens < tokens:
            ends = np.cumsum(draw_lengths("lognormal", CHUNK, rng))
            ids = rng.integers(104, vocabulary - 1, int(ends[-1]))  # between them no shape has a special token
            writer.add(np.split(ids, ends[:-1]), document=writer.rows)  # type: ignore[arg-type]
        writer.finish(f"synthetic {tokens} {seed}", {})
        written = writer.tokens
    return {"tokens": written, "seconds": time.perf_counter() - begin, "own_bytes": memory()["own"]}


class Scaling:
    """Runs the four series on one shape."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.precision = choose_precision(options.precision)
        self.threads = options.threads or torch.get_num_threads()
        self.rounds = options.rounds or (2 if options.quick else 5)
        self.seconds = options.seconds if options.seconds is not None else 1.0 if options.quick else 5.0

    def spec(self, name: str = "ours-mlm", **changes: Any) -> Spec:
        common = {"shape": self.options.shape, "precision": self.precision, "batch": 64, "seed": 0}
        return Spec(name, self.threads, {**common, **changes})

    def series(self, title: str, specs: dict[int, Spec]) -> list[dict[str, float]]:
        """Measure points of one series against each other, in interleaved rounds."""
        say(title)
        named = {str(place): spec for place, spec in specs.items()}
        rates = interleave(named, rounds=self.rounds, seconds=self.seconds, warm_up=1)
        return [
            {"at": int(place), "tokens_per_second": statistics.median(values), "lowest": min(values),
             "highest": max(values)}
            for place, values in rates.items()
        ]  # fmt: skip

    def lengths(self) -> list[dict[str, float]]:
        """Texts of one length each, the same number of tokens a step."""
        step = 1_024 if self.options.quick else 8_192
        lengths = (64, 128, 256, 512)
        specs = {length: self.spec(lengths=f"fixed:{length}", batch=step // length, count=1_024) for length in lengths}
        return self.series("length of texts", specs)

    def batches(self) -> list[dict[str, float]]:
        """Texts a step."""
        sizes = (8, 16, 32, 64) if self.options.quick else (8, 16, 32, 64, 128, 256)
        return self.series("texts a step", {size: self.spec(batch=size) for size in sizes})

    def views(self) -> list[dict[str, float]]:
        """Readings of each text: MLM, MLM with a contrast of two draws, DGA."""
        names = ("ours-mlm", "ours-two-views", "ours-dga")
        batch = 16 if self.options.quick else 64
        specs = {count: self.spec(name, batch=batch) for count, name in enumerate(names, start=1)}
        return self.series("views", specs)

    def corpora(self) -> list[dict[str, Any]]:
        """Corpora on disk, ten times as large each time, up to the largest."""
        say("size of the corpus")
        points: list[dict[str, Any]] = []
        sizes = [10**power for power in range(5, 10) if 10**power <= self.options.largest]
        for size in sizes:
            with tempfile.TemporaryDirectory(dir=self.options.folder) as folder:
                written = write_corpus(Path(folder), size, self.options.shape, seed=0)
                batch = 16 if self.options.quick else 64
                with Contender(self.spec(rows=folder, batch=batch)) as contender:
                    contender.turn(steps=1)
                    turns = [contender.turn(self.seconds) for _ in range(self.rounds)]
            rates = [turn["tokens"] / turn["seconds"] for turn in turns]
            points.append({
                "at": size,
                "tokens_per_second": statistics.median(rates),
                "lowest": min(rates),
                "highest": max(rates),
                "own_bytes": max(turn["own"] for turn in turns),
                "writing": written,
            })  # fmt: skip
            last = points[-1]
            say(f"  {size:,}: {last['tokens_per_second']:,.0f} tokens/s, {last['own_bytes'] / 2**20:,.0f} MiB")
        return points


def plot(result: dict[str, Any], file: Path) -> None:
    """Draw the series side by side; the last also shows memory."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {
        "lengths": "tokens of a text", "batches": "texts a step", "views": "readings of a text",
        "corpora": "tokens of the corpus",
    }  # fmt: skip
    series = {name: points for name, points in result["series"].items() if points}
    figure, panels = pyplot.subplots(1, len(series), figsize=(4 * len(series), 3.4), squeeze=False)
    for panel, (name, points) in zip(panels[0], series.items(), strict=True):
        places = [point["at"] for point in points]
        middle = np.array([point["tokens_per_second"] for point in points])
        below = middle - [point["lowest"] for point in points]
        above = [point["highest"] for point in points] - middle
        panel.errorbar(places, middle, [below, above], marker="o", capsize=3, color="C0")
        panel.set(xlabel=titles[name], ylabel="real tokens a second", ylim=(0, None))
        if name == "views":
            panel.set_xticks(places)
        else:
            panel.set_xscale("log", base=10 if name == "corpora" else 2)
        if name == "corpora":
            beside = panel.twinx()
            beside.plot(places, [point["own_bytes"] / 2**20 for point in points], marker="s", ls="--", color="C1")
            beside.set(ylabel="own memory, MiB (dashed)", ylim=(0, None))
    where = result["machine"]
    figure.suptitle(
        f"{result['shape']} shape, {result['precision']}, {where['processor']}, {where['threads']} threads, "
        f"{result['date']}"
    )
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="short turns, small steps, corpora up to 10^7 tokens")
    add("--series", choices=["lengths", "batches", "views", "corpora"], nargs="+", help="only these")
    add("--shape", default="minilm", help="minilm, base or tiny")
    add("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    add("--threads", type=int)
    add("--rounds", type=int)
    add("--seconds", type=float)
    add("--largest", type=float, help="tokens of the largest corpus (default 10^9, quick 10^7)")
    add("--folder", type=Path, help="where the corpora are written meanwhile (default: the usual place)")
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>-scaling.json)")
    options = parser.parse_args(arguments)
    options.largest = options.largest or (1e7 if options.quick else 1e9)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, draw."""
    options = parse(arguments)
    scaling = Scaling(options)
    where = machine(scaling.threads)
    names = options.series or ["lengths", "batches", "views", "corpora"]
    result = {
        "date": datetime.now().astimezone().date().isoformat(),
        "machine": where,
        "shape": options.shape,
        "precision": scaling.precision,
        "series": {name: getattr(scaling, name)() for name in names},
    }
    file = keep(result, options.json, "scaling")
    plot(result, file.with_suffix(".png"))
    print(f"{file}\n{file.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
