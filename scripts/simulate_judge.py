"""Measure how often ``acclimate judge`` shows a difference where there is none, and how often it misses a true one.

Each cell simulates 2,000 pairs of sides whose expected scores are equal. An item has a difficulty that all runs share,
each side has strengths and weaknesses on items, each run a deviation on all items and on single ones, and items of a
group are correlated. Writes ``docs/dev/judge.json`` and the page ``docs/dev/judge.md``.

    python scripts/simulate_judge.py  # ten minutes; resumes where it was stopped
"""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acclimate.evaluation.runs import difference_of_runs

OUT = Path(__file__).resolve().parents[1] / "docs" / "dev" / "judge.json"
SCORES = ("binary", "rarely right", "graded", "skewed", "heavy-tailed")
LAYOUTS = (
    "30 items",
    "300 items",
    "3,000 items",
    "10 groups of 1 to 50",
    "10 geometric groups",
    "30 groups of 1 to 50",
)
LAYOUTS = (*LAYOUTS, "100 groups of 1 to 50")
RUNS = ("1 and 1", "2 pairs", "3 pairs", "5 pairs", "2 and 2", "3 and 3", "1 and 3", "2 and 5")
BETWEEN = 0.2
"""Standard deviation of what a run adds on all items, where the difficulty of items has 1. With 30 items it is small
next to what the choice of items causes, with 3,000 items it is most of the variance."""
CORRELATION = 0.3
"""Share of the variance of items that their group explains."""


class Cell(NamedTuple):
    """What is simulated: kind of scores, items and groups, and runs of each side."""

    scores: str
    layout: str
    runs: str

    def groups(self, rng: np.random.Generator) -> np.ndarray:
        """Return the group of each item."""
        count = int(self.layout.split()[0].replace(",", ""))
        sizes = np.ones(count, dtype=int)
        if "geometric" in self.layout:
            sizes = np.round(np.geomspace(1, 50, count)).astype(int)
        elif "1 to 50" in self.layout:
            sizes = rng.integers(1, 51, count)
            sizes[:2] = 1, 50
        return np.repeat(np.arange(count), sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of runs of each side."""
        first, last = self.runs.split()[0], self.runs.split()[-1]
        return int(first), int(first if last == "pairs" else last)

    def world(self, rng: np.random.Generator, gain: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the scores of both sides (runs, items), and the group of each item."""
        groups = self.groups(rng)
        own = np.sqrt(1 - CORRELATION) if groups[-1] + 1 < len(groups) else 0.0

        def effect(deviation: float) -> np.ndarray:
            values = rng.standard_normal(groups[-1] + 1, np.float32)[groups]
            if own:
                values = np.sqrt(CORRELATION) * values + own * rng.standard_normal(len(groups), np.float32)
            return deviation * values

        common, sides = effect(1.0), []
        shared = BETWEEN * rng.standard_normal(max(self.sizes))
        for number, size in enumerate(self.sizes):
            run = BETWEEN * rng.standard_normal(size) + shared[:size] * self.runs.endswith("pairs")
            run = run * (size > 1)  # a single run is this one model
            ability = common + effect(0.7) + 0.5 * rng.standard_normal((size, len(groups)), np.float32)
            sides.append(self._score(ability, run[:, None] + gain * number, rng))
        return sides[1], sides[0], groups

    def _score(self, ability: np.ndarray, run: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal(ability.shape, np.float32)
        if self.scores == "binary":
            return (ability + run + noise > 0).astype(float)
        if self.scores == "rarely right":
            return (ability + run + noise > 3).astype(float)
        if self.scores == "graded":
            return np.clip(np.round(ability + run + 2), 0, 4) / 4
        if self.scores == "skewed":
            return np.exp(ability) + run
        # The tail of Student's t with 2.5 degrees of freedom.
        return ability + run + noise * (1 - rng.random(ability.shape, np.float32)) ** -0.4


def measure(cell: Cell, worlds: int) -> dict[str, Any]:
    """Return the share of worlds in which the first and the second side appear to be better."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    better = worse = withheld = 0
    for _ in range(worlds):
        first, second, groups = cell.world(rng)
        numbers = groups if groups[-1] + 1 < len(groups) else None
        found = difference_of_runs(first, second, groups=numbers, paired=cell.runs.endswith("pairs"))
        if not found.has_enough_units:
            withheld += 1
            continue
        better += found.interval.sign > 0
        worse += found.interval.sign < 0
    return {**cell._asdict(), "better": better, "worse": worse, "worlds": worlds - withheld}


PAGE = """# Null rates of `acclimate judge`

Share of simulated comparisons without a true difference whose 95 % interval excludes zero, in percent. About
{worlds:,} pairs of sides in each of {cells} cells;
over all of them {pooled:.1f} %: {better:.1f} % show the second side as
better, {worse:.1f} % as worse. The highest cell has {highest}. By `scripts/simulate_judge.py`, which has the model;
the numbers of each cell are in [judge.json](judge.json).

{tables}

*Rarely right*: about 4 % of the items are right, so that the sides differ on few. *Heavy-tailed*: the tail of
Student's t with 2.5 degrees of freedom. *Geometric groups*: of 1 to 50 items, the largest with a third of all. Runs
vary by 0.2 standard deviations of the difficulty of an item: with 30 items this is little, with 3,000 most of the
variance. *1 and 3*: one model, against three runs of the other. The rates are below 5 % where the margin of few runs
is conservative, and where scores take few values.

In all cells both sides have the same distribution of scores, so that differences are symmetric. The t interval is
less exact for skewed differences: where they are lognormal with mean zero, it excludes zero in 12 % of 4,000 samples
of 30 items, 8 % of 100, 6 % of 300 and 5 % of 1,000, nearly always on the side of the short tail.
"""


def rate(rows: list[dict[str, Any]], *sides: str) -> float:
    """Return the percentage of intervals that exclude zero, on the sides that are named or on both."""
    return (
        100
        * sum(row[side] for row in rows for side in sides or ("better", "worse"))
        / sum(row["worlds"] for row in rows)
    )


def render(rows: list[dict[str, Any]]) -> str:
    """Return the page with the rates."""
    tables = []
    for down, across in (("layout", "scores"), ("runs", "layout")):
        names = list(dict.fromkeys(row[across] for row in rows))
        lines = [["", *names, "highest cell"], ["---", *["--:"] * (len(names) + 1)]]
        for first in dict.fromkeys(row[down] for row in rows):
            own = [row for row in rows if row[down] == first]
            cells = [[row for row in own if row[across] == name] for name in names]
            shown = [f"{rate(cell):.1f}" if cell else "" for cell in cells]
            lines.append([first, *shown, f"{max(rate([row]) for row in own):.1f}"])
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    top = max(rows, key=lambda row: rate([row]))
    return PAGE.format(
        worlds=rows[0]["worlds"],
        cells=len(rows),
        pooled=rate(rows),
        better=rate(rows, "better"),
        worse=rate(rows, "worse"),
        highest=f"{rate([top]):.1f} % ({top['scores']} scores, {top['layout']}, {top['runs']})",
        tables="\n\n".join(tables),
    )


def main() -> None:
    """Measure all cells and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else []
    found = {Cell(row["scores"], row["layout"], row["runs"]): row for row in kept if row["worlds"] == given.worlds}
    for names in itertools.product(SCORES, LAYOUTS, RUNS):
        if (cell := Cell(*names)) not in found:
            found[cell] = measure(cell, given.worlds)
            lines = ",\n".join(json.dumps(row) for row in found.values())
            given.out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    given.out.with_suffix(".md").write_text(render(list(found.values())), encoding="utf-8")


if __name__ == "__main__":
    main()
