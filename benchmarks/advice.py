"""The rank correlation of the gain that `acclimate advise` expects with the gain that studies have measured.

    python -m benchmarks.advice --out docs/results/plan/advice.json

For each pair of a domain and a task it runs a pilot. The gain that it is compared with is that of language modelling
in a study whose results are kept.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from acclimate import advise
from acclimate.base.files import write_json
from acclimate.results.study import StudyResults

ROOT = Path(__file__).resolve().parents[1]
PAIRS = {
    "sequence": ("naive", ("nicta_piboso", "mr", "csabstruct", "fomc_stance")),
    "biomedical": ("lm", ("chemprot", "hoc")),
}
"""By study, the row of language modelling and the tasks. Each pair of a domain and a task occurs once."""


def rank_correlation(expected: list[float], measured: list[float]) -> tuple[float, float]:
    """Return Spearman's correlation, and its two-sided p-value over all permutations."""
    one, other = rankdata(expected), rankdata(measured)
    found = np.corrcoef(one, other)[0, 1]
    drawn = [np.corrcoef(one, order)[0, 1] for order in itertools.permutations(other)]
    return float(found), float(np.mean(np.abs(drawn) >= abs(found) - 1e-12))


def measure(steps: int, documents: int) -> dict[str, Any]:
    """Run the pilots for the pairs of the studies."""
    pairs: list[dict[str, Any]] = []
    for name, (method, tasks) in PAIRS.items():
        results = StudyResults.load(ROOT / "docs" / "results" / name / "results.json")
        pairs += measure_study(results, method, tasks, steps, documents)
    found = [[pair["expected"]["value"], pair["measured"]["difference"]] for pair in pairs]
    rho, p = rank_correlation(*map(list, zip(*found, strict=True)))
    return {"studies": list(PAIRS), "pilot_steps": steps, "spearman": rho, "p": p, "pairs": pairs}


def measure_study(
    results: StudyResults, method: str, tasks: tuple[str, ...], steps: int, documents: int
) -> Iterator[dict[str, Any]]:
    """Run the pilots for the pairs of one study, and yield each with its measured gain."""
    general, (model,) = results.config["general"], results.config["models"]

    def place(path: str) -> str:
        return str((ROOT / path).resolve())

    for domain in results.config["domains"]:
        for task in (task for task in domain["tasks"] if task["name"] in tasks):
            gain = next(row for row in results.scores if (row.task, row.method) == (task["name"], method))
            report = advise(
                place(model["path"]),
                [place(path) for path in domain["corpus"]],
                [place(path) for path in general],
                place(task["path"]),
                pilot_steps=steps,
                documents=documents,
                progress=False,
            )
            made, found = report["recommendation"], gain.comparison
            pair = {"study": results.name, "domain": domain["name"], "task": task["name"], "metric": gain.metric}
            pair["measured"] = {"difference": found.difference, "low": found.low, "high": found.high}
            pair |= {"expected": made["expected_gain"], "action": made["action"], "says": made["says"]}
            print(pair, flush=True)
            yield pair


def main() -> None:
    """Run the pilots, and write the pairs with their correlation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--documents", type=int, default=200)
    given = parser.parse_args()
    write_json(given.out, measure(given.steps, given.documents))


if __name__ == "__main__":
    main()
