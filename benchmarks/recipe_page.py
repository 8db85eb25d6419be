"""The results of the runs behind the default recipe of fine-tuning, as tables.

    python -m benchmarks.recipe_page

reads ``runs.jsonl`` and ``floors.json`` in docs/results/recipe and writes ``results.json`` next to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acclimate.base.files import write_json
from acclimate.evaluation.learning import BINS, bin_losses, still_falls
from acclimate.results.study import ReportTable, StudyResults
from acclimate.study.summary import environment

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "recipe"
SCORES_NOTE = (
    "Scores on at most 200 dev rows in percent, one seed; at most 32 tokens per text, batches of 16. The linear model "
    "learns from frozen states of the same rows; entities and answers have none. “still falls”: the training loss of "
    "the former default at the end. Cells without a number were not run."
)
FLOORS_NOTE = (
    "Fine-tuning of the base model as published, and a linear model on its frozen states with the same rows of each "
    "seed, in percent; difference in points with its interval over seeds and test items. Entities have none."
)


NAMES = ("fine-tuned", "probe", "difference", "low", "high")


def scores(runs: Iterable[dict[str, Any]]) -> ReportTable:
    """Return a row per task and size with the scores of the recipes."""
    cells: dict[tuple[str, int], dict[tuple[float, int], dict[str, Any]]] = {}
    for run in runs:
        cells.setdefault((run["task"], run["size"]), {})[run["rate"], run["floor"]] = run
    recipes = sorted({key for own in cells.values() for key in own if key[0]}, key=lambda key: (key[1], key[0]))
    lengths = [f"{floor} steps" if floor else "5 epochs" for _, floor in recipes]
    names = [f"{one}, {rate:.0e}".replace("e-0", "e-") for one, (rate, _) in zip(lengths, recipes, strict=True)]
    rows = []
    for (task, size), own in sorted(cells.items(), key=lambda item: (item[0][1], item[0][0])):
        shown = [100 * own[key]["dev"] if key in own else None for key in [(0.0, 0), *recipes]]
        old = own.get((3e-5, 0))
        falls = None if old is None else "yes" if is_unfinished(old) else "no"
        rows.append([task, next(iter(own.values()))["metric"], size, *shown, falls])
    columns = ["task", "metric", "train rows", "linear model", *names, "still falls"]
    return ReportTable(title="Scores on dev", note=SCORES_NOTE, columns=columns, rows=rows, digits=1)


def is_unfinished(run: dict[str, Any]) -> bool:
    """Return whether the loss of a run still fell at its end."""
    return still_falls(bin_losses([{"loss": loss} for loss in run["losses"]])) and len(run["losses"]) >= BINS


def floors(rows: Iterable[dict[str, Any]]) -> ReportTable:
    """Return a row per study and task with the score of the base model and of the linear model."""
    made = []
    for row in rows:
        place = [row["study"], row["task"], row["metric"], row["train"], row["steps"]]
        found = [100 * row[name] if name in row else None for name in NAMES]
        word = None
        if "high" in row:
            word = "below" if row["high"] < 0 else "above" if row["low"] > 0 else "no difference shown"
        made.append([*place, *found, word])
    columns = [
        "study",
        "task",
        "metric",
        "train rows",
        "steps",
        "fine-tuned",
        "linear model",
        *NAMES[2:],
        "fine-tuning",
    ]
    return ReportTable(title="Published studies", note=FLOORS_NOTE, columns=columns, rows=made, digits=1)


def main() -> None:
    """Write the tables."""
    runs = [json.loads(line) for line in (PAGE / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    published = json.loads((PAGE / "floors.json").read_text(encoding="utf-8"))["rows"]
    results = StudyResults(
        name="recipe",
        title="The default recipe of fine-tuning",
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        tables=[scores(runs), floors(published)],
        environment=environment(),
    )
    write_json(PAGE / "results.json", results.to_dict())


if __name__ == "__main__":
    main()
