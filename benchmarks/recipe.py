"""Fine-tuning recipes on few rows: learning rates and numbers of steps, scored on dev, next to a linear probe.

    python -m benchmarks.recipe --data DATA --model MODEL --out docs/results/recipe/runs.jsonl [--minutes 120]

Each cell is a line of the output; a second call computes those that are missing. No test split is read.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acclimate import finetune
from acclimate.data.task_kinds import load_task
from acclimate.engine.trainer import LOG_FILE
from acclimate.tasks.probing import LINEAR, measure_probe
from acclimate.tasks.splits import limit_splits, replace_test_with_dev

TASKS = (
    "fpb",
    "ncbi_disease",
    "asc_restaurant",
    "sts_headlines",
    "csabstruct",
    "citation_intent",
    "sst2",
    "rrc_restaurant",
)
"""Classes of texts and of pairs, entities, numbers, answers."""
BATCH, LENGTH, SCORED = 16, 32, 200
"""Rows per step, maximum tokens per example, and rows of dev."""
OLD = (3e-5, 0)
"""The former default: learning rate, and minimum number of steps; below it, 5 epochs."""
NEW = (2e-4, 300)
PROBED = ("single_label", "multi_label", "regression")
"""Scorings of the tasks that have a probe."""
PLAN = (
    (350, (OLD, NEW), 8),
    (100, (OLD, NEW), 8),
    (350, ((4e-4, 300), (1e-4, 300)), 1),
    (350, (OLD, NEW), 4),
    (350, ((4e-4, 300), (1e-4, 300)), 2),
    (100, (OLD, NEW), 2),
    (350, ((2e-4, 0), (2e-4, 600)), 2),
    (100, (OLD, NEW), 4),
    (100, ((2e-4, 600),), 4),
    (350, ((2e-4, 600), (1e-4, 600)), 4),
    (100, ((1e-4, 600),), 4),
    (350, ((4e-4, 300), (1e-4, 300)), 4),
    (1_000, (OLD, NEW), 4),
    (100, (OLD, NEW, (1e-4, 300), (4e-4, 300)), 8),
    (1_000, (OLD, NEW, (1e-4, 300), (4e-4, 300)), 8),
)
"""Cells in the order in which they are computed: train rows, recipes, number of tasks."""


def epochs(rows: int, floor: int, least: int = 5) -> int:
    """Return the passes over the rows that are at least ``floor`` steps."""
    return max(least, math.ceil(floor / math.ceil(rows / BATCH)))


def cells(model: str) -> Iterator[dict[str, Any]]:
    """Yield the cells in the order of the plan."""
    for size, recipes, count in PLAN:
        for task in TASKS[:count]:
            for rate, floor in recipes:
                yield {"model": model, "task": task, "size": size, "rate": rate, "floor": floor, "seed": 0}


def measure(cell: dict[str, Any], model: str, task: Any) -> dict[str, Any]:
    """Fine-tune a model, and return what the cell adds."""
    passes, cpu = epochs(len(task.train), cell["floor"]), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = finetune(
            model,
            task,
            epochs=passes,
            learning_rate=cell["rate"],
            batch_size=BATCH,
            max_length=LENGTH,
            warmup=0.1 if cell["floor"] else 0.06,
            seed=cell["seed"],
            progress=False,
            out=f"{folder}/tuned",
        )
        lines = (Path(folder) / "tuned" / LOG_FILE).read_text(encoding="utf-8").splitlines()
    metric = task.scoring().metrics[0]
    losses = [round(json.loads(line)["loss"], 4) for line in lines]
    return {
        "rows": len(task.train),
        "epochs": passes,
        "steps": result.steps,
        "metric": metric,
        "dev": result.metrics[metric],
        "losses": losses,
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def measure_linear(cell: dict[str, Any], model: str, task: Any) -> dict[str, Any]:
    """Return the score of the linear probe of a frozen model."""
    metric = task.scoring().metrics[0]
    made = measure_probe(model, task, labels_per_class=["all"], draws=[0], neighbors=5, max_length=LENGTH)
    score = next(score.metrics[metric] for score in made.scores if score.probe == LINEAR)
    return {"rows": len(task.train), "metric": metric, "dev": score}


def main() -> None:
    """Compute the cells that are missing, for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=120.0)
    given = parser.parse_args()
    names = ("model", "task", "size", "rate", "floor", "seed")
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.is_file() else []
    done = {tuple(row[name] for name in names) for row in map(json.loads, lines)}
    end, tasks, model = time.time() + 60 * given.minutes, dict[tuple[str, int], Any](), str(given.model)
    for cell in cells(given.model.name):
        place = (cell["task"], cell["size"])
        for one, run in (({**cell, "rate": 0.0, "floor": 0, "seed": 0}, measure_linear), (cell, measure)):
            key = tuple(one[name] for name in names)
            if key in done or time.time() > end:
                continue
            if place not in tasks:
                whole = load_task(given.data / cell["task"])
                tasks[place] = limit_splits(replace_test_with_dev(whole), train=cell["size"], test=SCORED)
            if run is measure_linear and tasks[place].scoring().kind not in PROBED:
                continue
            row = one | run(one, model, tasks[place])
            done.add(key)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({name: value for name, value in row.items() if name != "losses"}, flush=True)


if __name__ == "__main__":
    main()
