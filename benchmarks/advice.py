"""The rank correlation of the gain that `acclimate advise` expects with the gain that a study has measured.

    python -m benchmarks.advice docs/results/biomedical/results.json --out docs/results/plan/advice.json

For each pair of a domain and a task it runs a pilot; the gain that it is compared with is that of ``lm`` in the study.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from acclimate import advise
from acclimate.files import write_json
from acclimate.results import StudyResults

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ("nicta_piboso", "chemprot", "hoc", "csabstruct", "scicite", "citation_intent")
METHOD = "lm"


def rank_correlation(expected: list[float], measured: list[float]) -> tuple[float, float]:
    """Return Spearman's correlation, and its two-sided p-value over all permutations."""
    one, other = rankdata(expected), rankdata(measured)
    found = np.corrcoef(one, other)[0, 1]
    drawn = [np.corrcoef(one, order)[0, 1] for order in itertools.permutations(other)]
    return float(found), float(np.mean(np.abs(drawn) >= abs(found) - 1e-12))


def measure(results: StudyResults, steps: int, documents: int) -> dict[str, Any]:
    """Run the pilots for the pairs of a study."""
    config, pairs = results.config, []
    general, (model,) = config["general"], config["models"]

    def place(path: str) -> str:
        return str((ROOT / path).resolve())

    for domain in config["domains"]:
        for task in (task for task in domain["tasks"] if task["name"] in PAIRS):
            row = next(row for row in results.scores if (row.task, row.method) == (task["name"], METHOD))
            report = advise(
                place(model["path"]),
                [place(path) for path in domain["corpus"]],
                [place(path) for path in general],
                place(task["path"]),
                pilot_steps=steps,
                documents=documents,
                progress=False,
            )
            made, gain = report["recommendation"], row.comparison
            measured = {"difference": gain.difference, "low": gain.low, "high": gain.high}
            pairs.append({"domain": domain["name"], "task": task["name"], "metric": row.metric, "measured": measured})
            pairs[-1] |= {"expected": made["expected_gain"], "action": made["action"], "says": made["says"]}
            print(pairs[-1], flush=True)
    found = [[pair["expected"]["value"], pair["measured"]["difference"]] for pair in pairs]
    rho, p = rank_correlation(*map(list, zip(*found, strict=True)))
    return {"study": results.name, "pilot_steps": steps, "spearman": rho, "p": p, "pairs": pairs}


def main() -> None:
    """Run the pilots, and write the pairs with their correlation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--documents", type=int, default=200)
    given = parser.parse_args()
    write_json(given.out, measure(StudyResults.load(given.results), given.steps, given.documents))


if __name__ == "__main__":
    main()
