"""``acclimate adapt --dry-run`` and ``acclimate finetune --dry-run``: what would be trained, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acclimate.adaptation.adapt import plan_run
from acclimate.adaptation.options import BUDGETS, AdaptCommand, AdaptOptions
from acclimate.base.options import defaults, option_fields, values
from acclimate.base.progress import format_duration
from acclimate.base.verbs import Next, given_words
from acclimate.data.documents import Corpus
from acclimate.data.reading import DEFAULT_READING
from acclimate.data.task_kinds import find_task_kind, open_task
from acclimate.models.batching import training_bytes
from acclimate.study.backend import Backend
from acclimate.study.inputs import Checkpoint
from acclimate.study.job import HEAD, Job, Place
from acclimate.study.jobs.adapt import AdaptJob
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.pricing import Durations
from acclimate.tasks.finetune import Finetuning
from acclimate.tasks.options import FinetuneCommand, FinetuneOptions
from acclimate.tasks.recipe import rates_to_try
from acclimate.tasks.seeds import count_seeds
from acclimate.tasks.splits import repartition

ELSEWHERE = ("model", "corpus", "task", "out", "progress", "report_to", "push_to_hub", "dry_run", "heldout")
"""Options that a job has elsewhere, or that do not change how long it takes."""


@dataclass
class DryRun:
    """What a training would do.

    Attributes:
        plan: Settings that were inferred, and sizes, by name.
        seconds: Estimated duration; None if it could not be timed.
        notes: What else is known, in sentences.
    """

    plan: dict[str, Any]
    seconds: float | None = None
    notes: list[str] = field(default_factory=list)

    def show(self) -> Iterator[Any]:
        """Yield the plan, the estimated time, and the command that runs it."""
        for name, value in self.plan.items():
            yield f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
        yield from self.notes
        if self.seconds is not None:
            yield f"time: about {format_duration(self.seconds)} on this machine, a rough estimate"
        yield Next(given_words("--dry-run"), "to run it")


def price(
    jobs: Sequence[Job],
    made: DryRun,
    *,
    progress: bool,
    backend: Backend | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DryRun:
    """Return a dry run with the estimated duration of its jobs, priced as the jobs of a study are."""
    durations = Durations()
    durations.time(jobs, backend or Backend(), progress=progress, clock=clock)
    found = [durations.estimate(job) for job in jobs]
    made.seconds = None if None in found else sum(one[0] for one in found if one)
    made.notes += durations.notes()
    return made


def price_adaptation(options: AdaptCommand) -> DryRun:
    """Return what ``acclimate adapt`` would do.

    Raises:
        UserError: As :func:`acclimate.adapt`.
    """
    return price(*plan_adaptation(options), progress=options.progress)


def plan_adaptation(options: AdaptOptions) -> tuple[list[AdaptJob], DryRun]:
    """Read and check everything that an adaptation reads; return jobs for it and for a new head, and what it does."""
    run = plan_run(options)
    method, usual = run.method, defaults(AdaptOptions)
    given = {name: getattr(options, name) for name in option_fields(AdaptOptions)}
    given = {
        name: value for name, value in given.items() if name not in (*ELSEWHERE, *BUDGETS) and value != usual.get(name)
    }
    given |= {"max_length": run.max_length, "method": options.method}
    if run.budget.max_minutes is not None:
        given["max_minutes"] = run.budget.max_minutes
    plan: dict[str, Any] = {"text": run.text.report.summary(), "method": method.name}
    made, heads = DryRun(plan), list[str]()
    if not method.stages():
        given |= {} if "max_minutes" in given else {"steps": run.steps}
        model = run.loaded.model
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        size = sum(one.numel() for one in model.parameters())
        tokens = round(run.steps * run.batch_size * run.mean_length)
        plan |= {
            "model": f"{run.loaded.kind.name} language model, {size:,} parameters, {trained:,} of them trained",
            "rows": f"{len(run.rows):,} of at most {run.length} tokens, {run.layout}; {run.rows.tokens:,} tokens",
            "learning rate": f"{run.learning_rate:g}",
            "precision": str(run.precision),
            "texts per step": run.batch_size,
        }
        if "max_minutes" in given:
            plan["steps"] = f"as many as fit into {given['max_minutes']:g} minutes"
        else:
            plan |= {"steps": run.steps, "tokens": f"about {tokens:,}, {tokens / run.rows.tokens:.2g} passes"}
        memory = training_bytes(model) / 1e6
        plan["memory"] = f"{memory:,.0f} MB for weights, gradients and AdamW, and what a step needs in addition"
        if run.loaded.absent_head:
            heads.append(HEAD)
            made.notes.append(
                f"The model has no language-model head: one is first trained on {options.head_tokens:,} tokens."
            )
    parameters = method.settings()
    job = AdaptJob(
        place=Place(model=Path(str(options.model)).name, method=method.name),
        model=Checkpoint.read(str(options.model)),
        method=method.name,
        parameters=parameters,
        corpus=run.text if isinstance(run.text, Corpus) else Corpus.of(run.text),
        task=run.task if method.learns_task else None,
        settings={"head_tokens": options.head_tokens},
        options=given,
    )
    return [job, *(replace(job, place=replace(job.place, method=head)) for head in heads)], made


def price_finetuning(options: FinetuneCommand) -> DryRun:
    """Return what ``acclimate finetune`` would do.

    Raises:
        UserError: As :func:`acclimate.finetune`.
    """
    return price(*plan_finetuning(options), progress=options.progress)


def plan_finetuning(options: FinetuneCommand) -> tuple[list[FinetuneJob], DryRun]:
    """Read and check everything that fine-tuning reads; return a job for each seed, and what they would do."""
    task = open_task(options.task, options)
    if options.repartition is not None:
        task = repartition(task, options.repartition)
    own = {**values(options, FinetuneOptions), **values(DEFAULT_READING), "task": task, "out": None}
    run = Finetuning(FinetuneOptions(**own))
    resolved, usual = run.resolved, defaults(FinetuneOptions)
    seeds = count_seeds(options)
    steps = resolved.epochs * -(-len(run.examples) // resolved.batch_size)
    rows = ", ".join(f"{len(getattr(task, split)):,} {split}" for split in ("train", "dev", "test"))
    plan: dict[str, Any] = {
        "task": f"{task.name}, {find_task_kind(task).name}: {rows} rows",
        "labels": ", ".join(map(str, task.labels)) or "none",
        "train rows": len(run.examples),
        "tokens per row": f"at most {resolved.max_length}",
        "epochs": resolved.epochs,
        "learning rate": f"{resolved.learning_rate:g}",
        "rows per step": resolved.batch_size,
        "steps": f"{steps:,} with each of {seeds} seeds",
        "precision": str(run.precision),
    }
    left_out = {*ELSEWHERE, *values(DEFAULT_READING), "first", "seed", "tune", "all_labels"}
    given = {name: value for name, value in values(options, FinetuneOptions).items() if name not in left_out}
    job = FinetuneJob(
        place=Place(model=Path(str(options.model)).name, task=task.name),
        model=Checkpoint.read(str(options.model)),
        task=task,
        first=run.before.task if run.before else None,
        settings={**values(resolved), "first_epochs": run.before.options.epochs if run.before else None},
        seed=0,
        options={name: value for name, value in given.items() if value != usual.get(name)},
    )
    tried = len(rates_to_try(None)) if options.tune else 0
    return [replace(job, seed=seed) for seed in range(seeds + tried)], DryRun(plan)
