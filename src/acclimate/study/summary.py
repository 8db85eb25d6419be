"""Assembling the results of a study from its finished jobs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from acclimate.results import Failure, JobCounts, MethodRow, StudyResults
from acclimate.rows import SearchRow
from acclimate.study.contamination import Contamination
from acclimate.study.inputs import StudyInputs
from acclimate.study.jobs.base import JobGraph, Outcome, StudyView, kinds

PACKAGES = ("acclimate", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scikit-learn", "numpy")
STATES = ("done", "reused", "failed", "blocked", "missing")
CHOSEN = "chosen on dev"
"""Replaces the value of a parameter for which a search chose different values on different tasks or models."""


def summarize(
    inputs: StudyInputs,
    graph: JobGraph,
    outcomes: Mapping[str, Outcome],
    out: Path,
    *,
    searches: Sequence[SearchRow] = (),
    contamination: Contamination | None = None,
) -> StudyResults:
    """Return the results of a study.

    Args:
        inputs: Inputs of the study.
        graph: Its jobs, with the chosen settings.
        outcomes: Outcomes of these jobs and of the jobs of a search, by key.
        out: Folder of the study.
        searches: Results of the searches.
        contamination: Dev and test texts found in the training text.
    """
    config, contamination = inputs.config, contamination or Contamination()
    view = StudyView(inputs, graph, outcomes, out)
    methods = {row.label: row for kind in kinds() for row in kind.method_rows(inputs)}
    rows: dict[str, Any] = {}
    for kind in kinds():
        for name, found in kind.rows(view).items():
            rows.setdefault(name, []).extend(found)
    states = [outcome.state for outcome in outcomes.values()]
    return StudyResults(
        name=config.name,
        title=config.title or config.name,
        notes=[*config.notes, *_limit_notes(inputs)],
        samples=[sample.model_dump(exclude_none=True) for sample in config.samples],
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=config.baseline,
        models=[model.name for model in config.models],
        domains=[domain.name for domain in config.domains],
        methods=[
            MethodRow(label=label, name=row.name, parameters=used_parameters(row.parameters, label, searches))
            for label in config.row_labels
            if (row := methods.get(label))
        ],
        seeds=config.seeds,
        adapt_seeds=config.adapt_seeds or [config.adapt.seed],
        shared_adaptation=len(config.adapt_seeds or [0]) == 1 and any(not row.head for row in rows["adaptations"]),
        searches=list(searches),
        contamination=contamination.rows,
        unchecked=contamination.unchecked,
        failures=[
            Failure(job=outcome.job.description, error=outcome.error, state=outcome.state)
            for outcome in outcomes.values()
            if outcome.state in ("failed", "blocked", "missing")
        ],
        jobs=JobCounts(total=len(outcomes), **{state: states.count(state) for state in STATES}),
        config=config.resolved(),
        environment=environment(),
        **rows,
    )


def used_parameters(parameters: Mapping[str, Any], label: str, searches: Sequence[SearchRow]) -> dict[str, Any]:
    """Return the parameters that a row was run with: values chosen by a search replace those of the study file."""
    mine = [search for search in searches if label in search.methods]
    tried = {name for search in mine for trial in search.trials for name in trial.settings}
    used = dict(parameters)
    for name in sorted(tried & parameters.keys()):
        values = [search.chosen[name] for search in mine if search.chosen and name in search.chosen]
        used[name] = values[0] if values and all(value == values[0] for value in values) else CHOSEN
    return used


def _limit_notes(inputs: StudyInputs) -> list[str]:
    """Return a paragraph for each task with a row limit; equal paragraphs of several domains appear once."""
    notes = [
        f"Of {name} only a random part was read, the same for all models and seeds: "
        + " and ".join(f"{kept:,} of {whole:,} rows of {split}" for split, (kept, whole) in task.limited.items())
        + ". Scores on it cannot be compared with those on the whole."
        for (_, name), task in inputs.tasks.items()
        if task.limited
    ]
    return list(dict.fromkeys(notes))


def environment() -> dict[str, str]:
    """Return the versions of Python and the main packages, the system, the processor and the GPU, if there is one."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = f"{_processor()}, {os.cpu_count()} logical cores"
    if kernels := os.environ.get("ACCLIMATE_KERNELS"):
        found["kernels"] = kernels
    accelerator = _accelerator()
    return {**found, "accelerator": accelerator} if accelerator else found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
