"""Which published studies judge models below the linear probe of their base model, from the stored predictions.

    python -m benchmarks.floors --out docs/results/recipe/floors.json

For each study with cells, every task that has a probe: fine-tuning of the base model on the rows of each seed against
a linear model of its frozen states on the same rows, paired by test item.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import write_json
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.evaluation.significance import paired_bootstrap
from acclimate.study.config import StudyConfig
from acclimate.study.settings import UNADAPTED
from acclimate.tasks import probing
from acclimate.tasks.splits import limit_splits

PAGES = Path(__file__).resolve().parents[1] / "docs" / "results"


def remember(states: dict[tuple[str, str, int], np.ndarray], read: Any) -> Any:
    """Return :func:`acclimate.tasks.probing.mean_states` with a memory: studies share tasks."""

    def mean_states(model: str, texts: Sequence[str], length: int, progress: bool = False) -> np.ndarray:
        new = [text for text in texts if (model, text, length) not in states]
        if new:
            for text, state in zip(new, read(model, new, length, progress), strict=True):
                states[model, text, length] = state
        return np.stack([states[model, text, length] for text in texts])

    return mean_states


def cells(page: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the fine-tunings of base models in a study, by task."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tarfile.open(page / "cells.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            cell = json.load(file) if file and member.name.endswith(".json") and "/" in member.name else {}
            place = cell.get("place") or {}
            is_base = (cell.get("kind"), cell.get("status"), place.get("method")) == ("finetune", "done", UNADAPTED)
            if is_base and not place.get("search") and not place.get("role"):
                found.setdefault(place["task"], []).append(cell)
    return {task: sorted(own, key=lambda cell: cell["place"]["seed"]) for task, own in found.items()}


def floors(page: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each task of a study."""
    config, found = StudyConfig.load(page / "study.yaml"), cells(page)
    model = config.models[0]
    for domain in config.domains:
        for spec in domain.tasks:
            own = [cell for cell in found.get(spec.name, []) if cell["place"]["model"] == model.name]
            if not own:
                continue
            task = limit_splits(load_task(spec.path, name=spec.name), **spec.limits)
            first, settings = own[0]["result"], own[0]["identity"]["settings"]
            scoring = task.scoring(negative=spec.negative)
            metric = spec.metric or scoring.metrics[0]
            row = {"study": page.name, "task": spec.name, "metric": metric, "train": first["train_size"]}
            row |= {"steps": first["steps"], "rate": settings["learning_rate"], "seeds": len(own)}
            row["fine-tuned"] = float(np.mean([cell["result"]["metrics"][metric] for cell in own]))
            try:
                find_task_kind(task).probe(task)
            except UserError:
                yield row
                continue
            shots, seeds = settings["few_shot"], [cell["place"]["seed"] for cell in own]
            made = probing.measure_probe(
                model.path,
                task,
                labels_per_class=["all" if shots is None else shots],
                draws=seeds,
                neighbors=5,
                max_length=settings["max_length"],
                negative=spec.negative or (),
            )
            fits = {score.draw: score for score in made.scores if score.probe == probing.LINEAR}
            fits = {seed: fits.get(seed, next(iter(fits.values()))) for seed in seeds}
            if made.gold != first["gold"]:
                yield row | {"note": "the task has changed since"}
                continue
            interval = paired_bootstrap(
                made.gold,
                [cell["result"]["predicted"] for cell in own],
                [fits[seed].predicted for seed in seeds],
                metric,
                scoring=scoring,
            )
            row["probe"] = float(np.mean([fits[seed].metrics[metric] for seed in seeds]))
            yield row | {"difference": interval.difference, "low": interval.low, "high": interval.high}


def main() -> None:
    """Measure the studies that have no rows yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--study", action="append", help="folder in docs/results; by default all with cells")
    given = parser.parse_args()
    out, names = given.out, given.study or sorted(path.parent.name for path in PAGES.glob("*/cells.tar.xz"))
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.is_file() else []
    probing.mean_states = remember({}, probing.mean_states)
    for page in map(PAGES.joinpath, names):
        if page.name in {row["study"] for row in rows}:
            continue
        new = list(floors(page))
        rows += new
        write_json(out, {"rows": rows})
        for row in new:
            print(row, flush=True)


if __name__ == "__main__":
    main()
