"""Dry run: remaining jobs of a study and their estimated time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.study.backend import Backend
from acclimate.study.compare import check_study_folder, prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import JobStore
from acclimate.study.graph import read_study
from acclimate.study.jobs.base import Job, JobGraph, Outcome
from acclimate.study.search import final_graph, run_search

ALIKE = ("model", "method", "domain", "task", "text")
"""Fields of the place that a finished job shares with a job to be preferred for its estimate."""


@dataclass
class JobEstimate:
    """The jobs of one kind in one part of a study.

    Attributes:
        part: ``"search 1"``, ``"search 2"``, ... or ``"study"``.
        kind: Name of the kind.
        jobs: Number of jobs.
        done: Number of jobs with a result.
        seconds: Estimated seconds for the remaining jobs in one process; None if no job of the kind has finished yet.
    """

    part: str
    kind: str
    jobs: int
    done: int
    seconds: float | None


@dataclass
class Forecast:
    """The remaining work of a study.

    Attributes:
        estimates: The jobs by part and kind. A job that several parts need counts in the first one.
        guessed: Whether some settings have not been chosen yet. Later parts are then planned with the first
            combination of each incomplete search.
    """

    estimates: list[JobEstimate]
    guessed: bool

    @property
    def seconds(self) -> float | None:
        """Estimated seconds for all remaining jobs; None if the estimate of any part is unknown."""
        left = [estimate.seconds for estimate in self.estimates if estimate.done < estimate.jobs]
        return None if None in left else sum(seconds or 0.0 for seconds in left)


def forecast(config: StudyConfig | str | Path, out: str | Path, backend: Backend | None = None) -> Forecast:
    """Plan a study and look up which jobs are done. No job is computed, and nothing is written to ``out``.

    With ``leakage: remove`` the corpora are searched for dev and test texts, since the documents to remove determine
    the identity of the jobs; the findings are cached for the study.

    A job is estimated by the mean duration of the finished jobs in ``out`` that have the same kind, model, method,
    domain, task and text, or else of all finished jobs of the same kind. Jobs of earlier versions of the study count
    as well.

    Args:
        config: The study, or the path of its file.
        out: Folder of the study; it need not exist.
        backend: The expensive functions; by default those of this package.

    Raises:
        UserError: If the study cannot be run.
    """
    config = config if isinstance(config, StudyConfig) else StudyConfig.load(config)
    out = check_study_folder(out)
    inputs, _ = prepare(read_study(config, backend or Backend()), cached_only=True)
    store, graphs = JobStore(out), list[JobGraph]()

    def look_up(graph: JobGraph) -> dict[str, Outcome]:
        graphs.append(graph)
        return {key: store.outcome(job) for key, job in graph.jobs.items()}

    found = run_search(inputs, look_up, guess=True)
    guessed, found.complete = not found.complete, True
    parts = [*(f"search {number}" for number in range(1, len(graphs) + 1)), "study"]
    graphs.append(final_graph(inputs, found))
    durations, seen, estimates = Durations(store.finished()), set[str](), []
    for part, graph in zip(parts, graphs, strict=True):
        new = [job for key, job in graph.jobs.items() if key not in seen]
        seen |= graph.jobs.keys()
        for kind in dict.fromkeys(job.name for job in new):
            jobs = [job for job in new if job.name == kind]
            left = [job for job in jobs if store.result(job) is None]
            estimates.append(JobEstimate(part, kind, len(jobs), len(jobs) - len(left), durations.total(left)))
    return Forecast(estimates, guessed)


class Durations:
    """Durations of finished jobs in seconds, by kind, and by kind and the fields in :data:`ALIKE`."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._seconds: dict[tuple[Any, ...], list[float]] = {}
        for record in records:
            kind, place = record["kind"], record["place"]
            for group in ((kind,), (kind, *(place.get(name) for name in ALIKE))):
                self._seconds.setdefault(group, []).append(float(record["seconds"]))

    def total(self, jobs: Iterable[Job]) -> float | None:
        """Return the estimated seconds for jobs of one kind; None if no job of the kind has finished."""
        total = 0.0
        for job in jobs:
            alike = self._seconds.get((job.name, *(getattr(job.place, name) for name in ALIKE)))
            known = alike or self._seconds.get((job.name,))
            if known is None:
                return None
            total += float(np.mean(known))
        return total
