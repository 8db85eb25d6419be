"""A token budget that fits a study into a given time, measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from acclimate.errors import UserError
from acclimate.options.training import BUDGETS
from acclimate.study.backend import Backend
from acclimate.study.changes import change_values
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import Executor, JobStore
from acclimate.study.forecast import Durations
from acclimate.study.graph import plan, read_study
from acclimate.study.jobs.adapt import AdaptJob
from acclimate.study.jobs.base import Checkpoint, Job, Model, RunContext
from acclimate.study.settings import UNADAPTED

PILOT_SECONDS = 15.0
"""Training time of the adaptation that measures the speed of a method."""
RESERVE = 0.1
"""Share of the time that is kept for what was not measured, such as the report."""
FEWEST_TOKENS = 1_000
"""Smallest budget that is worth an adaptation."""


@dataclass(frozen=True)
class _PilotContext(RunContext):
    """A context whose jobs read the models of a study and write elsewhere."""

    study: Path = Path()

    def path(self, model: Model) -> str:
        return model.path if isinstance(model, Checkpoint) else str(self.study / "models" / model.key)


def fit_budget(
    study: Mapping[str, Any], out: str | Path, minutes: float, *, progress: bool = True, backend: Backend | None = None
) -> tuple[int | None, str]:
    """Return the tokens per adaptation with which a study takes about ``minutes``.

    The base model is measured and fine-tuned with one seed, as the study does anyway; the results are kept in ``out``.
    Each method then adapts each model for :data:`PILOT_SECONDS`. What is left of the time after all fine-tunings and
    measurements is divided among the adaptations.

    Args:
        study: The study, as plain values with absolute paths and without a budget.
        out: Folder of the study.
        minutes: The time, for one process on this machine.
        progress: Show progress bars.
        backend: The expensive functions; by default those of this package.

    Returns:
        The tokens, None if there is time for one pass over the corpus, and a sentence that says how they were found.

    Raises:
        UserError: If the time is too short, the study has a budget already, or it cannot be run.
    """
    if any(name in (study.get("adapt") or {}) for name in BUDGETS):
        raise UserError(f"--minutes sets the budget of the adaptations: remove it, or {', '.join(BUDGETS)}.")
    began, out, backend = time.monotonic(), Path(out), backend or Backend()
    store, context = JobStore(out), RunContext(backend, out, progress)
    first = change_values(study, {"seeds": 1, "methods": [UNADAPTED]})
    executor = Executor(store, context, None, False)
    executor.execute(plan(prepare(read_study(StudyConfig.of(first), backend), progress=progress)[0]))
    executor.check_failures(())
    graph = plan(prepare(read_study(StudyConfig.of(study), backend))[0])
    adaptations: dict[tuple[str | None, ...], list[AdaptJob]] = {}
    others: list[Job] = []
    for job in graph.jobs.values():
        if isinstance(job, AdaptJob) and not job.is_shared_base:
            adaptations.setdefault((job.place.model, job.place.method), []).append(job)
        elif store.result(job) is None:
            others.append(job)
    known = Durations(store.finished())
    fixed = sum(known.total([job]) or 0.0 for job in others)
    overhead, seconds_per_token, corpus_tokens = 0.0, 0.0, 0.0
    for jobs in adaptations.values():
        speed, extra, size = _time(jobs[0], backend, out, progress)
        overhead += len(jobs) * extra
        seconds_per_token += len(jobs) / speed
        corpus_tokens = max(corpus_tokens, size)
    spent = time.monotonic() - began
    left = 60 * minutes * (1 - RESERVE) - spent - fixed - overhead
    tokens = left / seconds_per_token if seconds_per_token else math.inf
    if tokens < FEWEST_TOKENS:
        needed = (spent + fixed + overhead + FEWEST_TOKENS * seconds_per_token) / 60 / (1 - RESERVE)
        raise UserError(
            f"{minutes:g} minutes are too short: with {len(others)} fine-tunings and measurements, this machine needs "
            f"more than {math.ceil(needed)} minutes. Give more --minutes, or fewer --seeds, --methods or --task."
        )
    count = sum(map(len, adaptations.values()))
    timing = f"Fine-tuning and measuring take about {fixed / 60:.1f} minutes more on this machine"
    if count:
        timing += f", and {count} adaptations read {count / seconds_per_token:,.0f} tokens per second"
    if tokens >= corpus_tokens:
        return None, f"{minutes:g} minutes are enough for one pass over the corpus per adaptation. {timing}."
    unit = 10 ** max(0, int(math.log10(tokens)) - 1)
    kept = int(tokens // unit * unit)  # two digits
    return kept, (
        f"To fit into {minutes:g} minutes, an adaptation reads {kept:,} tokens, {kept / corpus_tokens:.0%} of the "
        f"corpus. {timing}."
    )


def _time(job: AdaptJob, backend: Backend, out: Path, progress: bool) -> tuple[float, float, float]:
    """Return the tokens per second of an adaptation, its seconds besides training, and the tokens of its corpus."""
    options = {name: value for name, value in job.options.items() if name not in BUDGETS}
    pilot = replace(job, options={**options, "max_minutes": PILOT_SECONDS / 60})
    sizes: list[int] = []

    def adapt(*args: Any, **given: Any) -> Any:
        result = backend.adapt(*args, **given)
        sizes.append(result.rows.tokens)
        return result

    began = time.monotonic()
    with TemporaryDirectory(dir=out) as folder:
        result = pilot.run(_PilotContext(replace(backend, adapt=adapt), Path(folder), progress, study=out))
    spent = time.monotonic() - began
    return result.tokens / max(result.seconds, 1e-3), max(0.0, spent - result.seconds), float(sizes[0])
