"""Recompute the intervals of published results with the groups of their test items as units, from the stored cells.

    python scripts/regroup_results.py             # all pages with cells and groups; then `make docs`
    python scripts/regroup_results.py --rivals    # only the differences from the cheapest rivals

The studies under docs/results ran when every test item counted as independent. `results.json` and `cells.tar.xz` stay
as they were. `docs/results/groups.json` has the number of the document, abstract or review of each test item, taken
from the ids in the data; `grouped.json` in the folder of a page has the rows that change, which `render_results.py`
shows instead of the old ones. What is computed without groups has to equal `results.json`, else this stops.

`rivals.json` has the differences of the rows in `rivals.yaml` from another row than the baseline, with groups.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from acclimate.base.files import read_json, write_json
from acclimate.results.scores import Interval, ScoreRow
from acclimate.results.study import StudyResults
from acclimate.study.job import JobResult, Place
from acclimate.study.jobs.finetune import average_over_tasks
from acclimate.study.jobs.lm_loss import TextLoss, change_of_loss
from acclimate.study.jobs.probe import ProbeResult, _row, _runs
from acclimate.study.summary import TaskResult, compare_runs, summarize_scores

PAGES = Path(__file__).resolve().parents[1] / "docs" / "results"
GROUPS, GROUPED = "groups.json", "grouped.json"
RIVALS, AGAINST = "rivals.yaml", "rivals.json"
KEYS = "model", "domain", "task", "method", "metric", "probe", "labels_per_class"
CHANGED = "difference", "interval", "test_items", "test_units", "group_name", "test_set"
"""Parts of a row that identify it, and those that groups change."""
PLAIN = "none"
"""Label of the rows of the model without adaptation."""


@dataclass(frozen=True)
class StoredJob:
    """What is known of a job from its cell.

    Attributes:
        place: Its place in the study.
        model: Identity of the model that it reads.
        draws: The draws of a probe.
    """

    place: Place
    model: str
    draws: tuple[int, ...] = ()

    @property
    def chain(self) -> list[Any]:
        """The job and the adaptation before it."""
        return [self] if self.place.method in (None, PLAIN) else [self, StoredAdaptation(self.model, self.place)]

    def at(self, **changes: Any) -> StoredJob:
        """Return the job at another place."""
        return replace(self, place=replace(self.place, **changes))


@dataclass(frozen=True)
class StoredAdaptation:
    """The adaptation that a job starts from."""

    key: str
    place: Place


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Return the stored jobs of a page.

    Raises:
        ValueError: If two have the same place in the study, so that one is of another version of it.
    """
    with tarfile.open(folder / "cells.tar.xz") as archive:
        cells = [json.load(archive.extractfile(member)) for member in archive if member.isfile()]  # type: ignore[arg-type]
    places = Counter((cell["kind"], json.dumps(cell["place"], sort_keys=True)) for cell in cells)
    if twice := [place for place, count in places.items() if count > 1]:
        raise ValueError(f"{folder.name}: two versions of {len(twice)} jobs, such as {twice[0]}; keep the last")
    return cells


@cache
def known_groups() -> dict[str, Any]:
    """Return what :data:`GROUPS` holds."""
    found: dict[str, Any] = read_json(PAGES / GROUPS)
    return found


def groups_of(page: str, task: str) -> dict[str, Any] | None:
    """Return ``group_name`` and ``groups`` of the test items of a task, those of a drawn part if the page has one."""
    known = known_groups()
    found: dict[str, Any] | None = known.get(f"{page}/{task}", known.get(task))
    return found


def read_runs(
    cells: Sequence[Mapping[str, Any]], page: str, seeds: Sequence[int], *, grouped: bool
) -> dict[tuple[str, str], list[Any]]:
    """Return the fine-tunings with these seeds by method and task, in order of the seeds."""
    runs: dict[tuple[str, str], list[Any]] = {}
    for cell in cells:
        place = Place(**cell["place"])
        if cell["kind"] == "finetune" and place.role is None and place.search is None and place.seed in seeds:
            result = TaskResult.from_dict(with_groups(cell["result"], page, grouped=grouped))
            job = StoredJob(place, cell["identity"]["model"])
            runs.setdefault((str(place.method), str(place.task)), []).append(JobResult(job, result))  # type: ignore[arg-type]
    return {key: sorted(found, key=lambda run: run.job.place.seed) for key, found in runs.items()}


def with_groups(result: Mapping[str, Any], page: str, *, grouped: bool) -> dict[str, Any]:
    """Return a stored result, with the groups of its items if wanted."""
    scoring = dict(result["scoring"])
    if result["kind"] == "entities":
        scoring.pop("documents", None)  # without any
    found = groups_of(page, result["task"])
    if grouped and found is not None:
        if len(found["groups"]) != len(result["gold"]):
            raise ValueError(f"{page}: {result['task']} has {len(result['gold'])} items, not {len(found['groups'])}")
        scoring |= found
    return {**result, "scoring": scoring}


def read_probes(cells: Sequence[Mapping[str, Any]], page: str, *, grouped: bool) -> dict[tuple[str, str], list[Any]]:
    """Return probes by method and task."""
    found: dict[tuple[str, str], list[Any]] = {}
    for cell in cells:
        if cell["kind"] == "probe":
            job = StoredJob(Place(**cell["place"]), cell["identity"]["model"], tuple(cell["identity"]["draws"]))
            result = ProbeResult.from_dict(with_groups(cell["result"], page, grouped=grouped))
            found.setdefault((str(job.place.method), str(job.place.task)), []).append(JobResult(job, result))  # type: ignore[arg-type]
    return found


def regroup(
    folder: Path, file: str, *, grouped: bool, methods: Collection[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of tasks with groups, and the means over tasks, computed from the cells.

    Args:
        folder: Folder of the page.
        file: ``results.json``, or the same jobs with another baseline.
        grouped: Whether groups are the units.
        methods: The methods of the rows, without means over tasks; None for all.
    """
    results, cells = StudyResults.load(folder / file), read_cells(folder)
    runs = read_runs(cells, folder.name, results.seeds, grouped=grouped)
    probes, count = read_probes(cells, folder.name, grouped=grouped), len(results.adapt_seeds)
    made: dict[str, list[dict[str, Any]]] = {"scores": [], "probes": [], "means": []}
    for row in results.scores:
        own, base = (runs.get((method, row.task), []) for method in (row.method, results.baseline))
        if own and groups_of(folder.name, row.task) and (methods is None or row.method in methods):
            new: ScoreRow = summarize_scores(own, row.metric, ScoreRow)
            if row.difference:
                new.difference = compare_runs(own, base, metrics=None if grouped else [row.metric])
            made["scores"].append(shortened(new.to_dict()))
    for probe in results.rows.get("probe", []):
        entries = probes.get((probe.method, probe.task), [])
        if entries and groups_of(folder.name, probe.task) and (methods is None or probe.method in methods):
            key = probe.probe, probe.labels_per_class
            made_row = _row(entries, *key, probe.metric)
            if probe.difference:
                pairs = [_runs(probes[method, probe.task], *key, count) for method in (probe.method, results.baseline)]
                made_row.difference = compare_runs(*pairs, metrics=[probe.metric])
            made["probes"].append(shortened(made_row.to_dict()))
    tasks = {row.task: row.metric for row in results.scores}
    for mean in results.means if methods is None else ():
        sides = [[runs.get((method, task), []) for task in tasks] for method in (mean.method, results.baseline)]
        if all(map(all, sides)):
            base_runs = sides[1] if mean.method != results.baseline else []
            averaged = average_over_tasks(sides[0], base_runs, list(tasks.values()))
            assert averaged is not None
            made["means"].append(replace(averaged, rank=mean.rank).to_dict())
    return made


def read_losses(
    cells: Sequence[Mapping[str, Any]], labels: Collection[str]
) -> dict[tuple[str, str, str], dict[Any, TextLoss]]:
    """Return the losses on texts by method, domain and text, and adaptation seed.

    Args:
        cells: The stored jobs.
        labels: Labels of the rows of the page; a cell can have the options of its method in parentheses, too.
    """
    found: dict[tuple[str, str, str], dict[Any, TextLoss]] = {}
    for cell in cells:
        place = Place(**cell["place"])
        if cell["kind"] == "lm_loss":
            label = place.method if place.method in labels else (place.method or PLAIN).partition(" (")[0]
            key = str(label), str(place.domain), str(place.text)
            found.setdefault(key, {})[place.adapt_seed] = TextLoss.from_dict(cell["result"])
    return found


def compare_losses(ours: Mapping[Any, TextLoss], theirs: Mapping[Any, TextLoss]) -> Interval:
    """Return the difference of the loss per token, paired by adaptation and text.

    Args:
        ours: Losses by adaptation seed.
        theirs: The same of the rival; of the base model, one for all seeds.
    """
    if set(theirs) == {None}:
        theirs = dict.fromkeys(ours, theirs[None])
    seeds = [seed for seed in ours if seed in theirs]
    after, before = ([side[seed] for seed in seeds] for side in (ours, theirs))
    found = change_of_loss(after, before, before[0].token_counts(), len(seeds) < 2)
    assert found is not None
    return found


def against_rivals(folder: Path, rivals: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return for each row its differences from its rival: on each task, their mean, and on each text.

    Args:
        folder: Folder of the page.
        rivals: Labels of rows and of their rivals.
    """
    results, cells = StudyResults.load(folder / "results.json"), read_cells(folder)
    runs = read_runs(cells, folder.name, results.seeds, grouped=True)
    losses = read_losses(cells, [row.label for row in results.methods])
    found: dict[str, dict[str, Any]] = {}
    for method, rival in rivals.items():
        differences: list[dict[str, Any]] = []
        rows = [row for row in results.scores if row.method == method]
        sides = [[runs.get((label, row.task), []) for row in rows] for label in (method, rival)]
        for row, ours, theirs in zip(rows, *sides, strict=True):
            if compared := compare_runs(ours, theirs, metrics=[row.metric]):
                place = {"model": row.model, "domain": row.domain, "task": row.task, "metric": row.metric}
                differences.append(place | rounded(compared.metrics[row.metric]))
        mean = average_over_tasks(*sides, [row.metric for row in rows]) if len(rows) > 1 else None
        for loss in results.losses:
            key = loss.domain, loss.text
            if loss.method == method and {(method, *key), (rival, *key)} <= losses.keys():
                place = {"model": loss.model, "domain": loss.domain, "text": loss.text, "unit": "nats"}
                differences.append(place | rounded(compare_losses(losses[method, *key], losses[rival, *key])))
        found[method] = {"rival": rival, "differences": differences}
        if mean and mean.difference:
            found[method]["mean"] = {"tasks": mean.tasks} | rounded(mean.difference)
    return found


def rounded(found: Interval) -> dict[str, Any]:
    """Return a difference, its interval and its verdict."""
    return {
        **{name: round(getattr(found, name), 6) for name in ("difference", "low", "high")},
        "verdict": found.verdict,
    }


def write_rivals() -> None:
    """Write the differences from rivals of all pages."""
    known = yaml.safe_load((PAGES / RIVALS).read_text(encoding="utf-8"))
    write_json(PAGES / AGAINST, {name: against_rivals(PAGES / name, rivals) for name, rivals in known.items()})


def shortened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a row, and what groups change in it."""
    return {name: row[name] for name in (*KEYS, *CHANGED) if name in row}


def differences(rows: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each row of results, or of :func:`regroup`, with its difference and interval."""
    tables = {"probes": rows.get("rows", {}).get("probe", []), **rows}
    for table in ("scores", "probes", "means"):
        for row in tables[table]:
            place = table, row["method"], row.get("task"), row.get("probe"), row.get("labels_per_class")
            entry = row.get("difference") or {}
            entry = entry.get(row.get("metric"), entry)
            if "low" in entry:
                yield place, [round(entry[name], 6) for name in ("difference", "low", "high")]


def main(names: Sequence[str]) -> None:
    """Recompute the pages with these names, or all."""
    if not names or "--rivals" in names:
        write_rivals()
    if "--rivals" in names:
        return
    for cells in sorted(PAGES.glob("*/cells.tar.xz")):
        folder = cells.parent
        if names and folder.name not in names:
            continue
        written = {}
        for file in ("results.json", "control.json"):
            if not (folder / file).exists():
                continue
            published = StudyResults.load(folder / file)
            stored = dict(differences(published.to_dict()))
            checked = [row.method for row in published.scores if row.difference][:1]
            again = dict(differences(regroup(folder, file, grouped=False, methods=checked)))
            if wrong := [place for place, values in again.items() if stored[place] != values]:
                raise SystemExit(
                    f"{folder.name}: without groups, {wrong[0]} is {again[wrong[0]]}, not {stored[wrong[0]]}"
                )
            made = regroup(folder, file, grouped=True)
            if made["scores"] or made["probes"]:
                written[file] = made
        if written:
            write_json(folder / GROUPED, written)
            sys.stdout.write(f"{folder.name}: {sum(map(len, written['results.json'].values()))} rows\n")


if __name__ == "__main__":
    main(sys.argv[1:])
