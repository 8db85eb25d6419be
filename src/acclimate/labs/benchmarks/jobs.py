"""Jobs on causal models, which are compared with their base model: tasks of lm-eval, and checkable instructions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from acclimate.base.bounds import Count
from acclimate.base.errors import UserError
from acclimate.base.files import hash_file
from acclimate.base.options import build
from acclimate.base.records import Record, optional
from acclimate.evaluation.prompts import AskedPrompt
from acclimate.evaluation.significance import number_groups, paired_bootstrap, paired_difference
from acclimate.results.scores import WITHHELD, Interval
from acclimate.results.study import ReportTable
from acclimate.study.backend import Backend
from acclimate.study.config import StudyConfig
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, JobResult, Model, Planner, RunContext, StudyModel, StudyView, register
from acclimate.study.jobs.capabilities import CapabilityRow, measurement
from acclimate.study.jobs.prompting import (
    DIFFERENCE,
    check_causal,
    difference_cells,
    is_causal,
    reads_prompts,
    row_label,
)
from acclimate.study.score_tables import prompt_table
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import ShortForm, distinct
from acclimate.study.summary import has_single_origin
from acclimate.tasks.options import Shots

NOTE = (
    "Tasks of lm-eval without fine-tuning, means over seeds of adaptation. Difference: to the base model, paired by "
    "item, with a 95 % interval over items, or the passages that these share, and adaptations."
)

INSTRUCTIONS = "instructions"
READ = {".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".txt"}
"""Files of a folder with tasks that determine the answers."""


class BenchmarkSpec(SectionEntry, ShortForm):
    """An entry of ``benchmarks``: the name of a task of lm-eval, or ``{task, metric?, few_shot?, limit?, ...}``.

    Attributes:
        metric: The metric that a group of capabilities shows; None for the first of the task.
        few_shot: Solved examples before each item; None for the number of the task. Of several, each model gets the
            best on dev.
        limit: Maximum items; None for all.
        chat_template: Whether to ask through the chat template; ``choose`` for what is better for a model on dev.
        include_path: Folder with more tasks of lm-eval.
    """

    short: ClassVar[str] = "task"
    task: str
    metric: str | None = None
    few_shot: Shots | Annotated[list[Shots], Field(min_length=1)] | None = None
    limit: Count | None = None
    chat_template: bool | Literal["choose"] = False
    include_path: str | None = None

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the folder absolute."""
        self.include_path = self.include_path and resolve(self.include_path)

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the answers."""
        return self.model_dump(exclude={"label", "metric"})


class BenchmarkItems(Record):
    """The values of each item by metric.

    Attributes:
        names: Identity of each item by metric.
        scores: Values by metric, each (items,).
        weights: Weights of the items in the mean by metric.
        groups: Number of the text that each item is about by metric, where items share one.
        prompts: Ways to ask that the model chose from on dev; None if there was one.
        chosen: Number of the one that it chose.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, list[float]] = field(default_factory=dict)
    groups: dict[str, list[int]] = field(default_factory=dict)
    prompts: list[AskedPrompt] | None = optional()
    chosen: int | None = optional()


@register("benchmark", summary="tasks of lm-eval, compared item by item")
class BenchmarkJob(Job):
    """Run a task of lm-eval on a model.

    Attributes:
        model: The model.
        settings: The task and how it is asked: see :class:`BenchmarkSpec`.
    """

    model: Model
    settings: dict[str, Any]

    result_type: ClassVar[type[Record]] = BenchmarkItems
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("benchmarks", BenchmarkSpec)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result; the folder of further tasks by its content."""
        folder = self.settings["include_path"]
        found = sorted(Path(folder).rglob("*.*")) if folder is not None else ()
        files = {str(file.relative_to(folder)): hash_file(file) for file in found if file.suffix in READ}
        return {**super().identity, "settings": {**self.settings, "include_path": files}}

    def run(self, context: RunContext) -> BenchmarkItems:
        """Run the task."""
        measure = context.backend.others.get(self.name, _measure)
        found = measure(context.path(self.model), **self.settings)
        first = next(iter(found.values()))
        return BenchmarkItems(
            prompts=getattr(first, "prompts", None),
            chosen=getattr(first, "chosen", None),
            names={metric: list(made.names) for metric, made in found.items()},
            scores={metric: np.asarray(made.values).tolist() for metric, made in found.items()},
            weights={
                metric: (np.ones(len(made.names)) if made.weights is None else made.weights).tolist()
                for metric, made in found.items()
            },
            groups={metric: number_groups(made.groups) for metric, made in found.items() if made.groups},
        )

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> dict[str, BenchmarkSpec]:
        """Return the benchmarks by name."""
        specs: Sequence[BenchmarkSpec] = config.sections.get("benchmarks", [])
        try:
            distinct("benchmarks", [spec.task for spec in specs], "list each once")
        except ValueError as error:
            raise UserError(f"study: {error}.") from error
        return {spec.task: spec for spec in specs}

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that there is a causal model."""
        if inputs.extras[cls.name]:
            check_causal(inputs, "'benchmarks'")

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job per benchmark for each causal model."""
        specs: dict[str, BenchmarkSpec] = planner.inputs.extras[cls.name]
        if specs and reads_prompts(planner, subject):
            for name, spec in specs.items():
                planner.add(cls(place=subject.place, model=subject.model, settings=spec.settings).at(text=name))

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> list[str]:
        """Return the benchmarks."""
        return list(inputs.extras[cls.name])

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table of all metrics, compared with the base model, and the measurements for capabilities."""
        groups, specs = view.group(BenchmarkItems), view.inputs.extras[cls.name]
        columns = ["model", "domain", "benchmark", "method", "metric", "items", "mean", *DIFFERENCE]
        table = ReportTable(title="Benchmarks", note=NOTE, columns=columns)
        measured: list[CapabilityRow] = []
        for runs, metric in itertools.chain.from_iterable(
            ((runs, metric) for metric in runs[0].result.scores) for runs in groups.values()
        ):
            place, spec = runs[0].job.place, specs[str(runs[0].job.place.text)]
            base = groups.get((place.model, place.domain, None, None, None, place.text, None), [])
            means = [_mean(run.result, metric) for run in runs]
            entry = _compare(runs, base, metric) if base and place.method is not None else None
            cells: list[Any] = [
                place.model,
                place.domain,
                place.text,
                row_label(place.method, place.adapted_for),
                metric,
            ]
            cells += [len(runs[0].result.names[metric]), float(np.mean(means)), *difference_cells(entry, 1, 3)]
            table.rows.append(cells)
            if entry and metric == (spec.metric or next(iter(runs[0].result.scores))):
                measured.append(measurement(place, spec.task, _mean(base[0].result, metric), means, entry))
        return {"tables": [table, prompt_table(groups.values())], "capabilities": measured}


def _measure(model: str, *, task: str, **settings: Any) -> dict[str, Any]:
    from acclimate.labs.benchmarks.harness import measure_items  # imports torch
    from acclimate.labs.benchmarks.options import InspectBenchmarksOptions

    found = measure_items(model, build(InspectBenchmarksOptions, model, task, **settings))
    return {metric if name == task else f"{metric}, {name}": items for (name, metric), items in found.items()}


def _mean(result: BenchmarkItems, metric: str) -> float:
    return float(np.average(result.scores[metric], weights=result.weights[metric]))


def _compare(
    runs: Sequence[JobResult[BenchmarkItems]], base: Sequence[JobResult[BenchmarkItems]], metric: str
) -> Interval | None:
    """Return the difference to the base model; None for a single item or passage, or if the items differ."""
    before = base[0].result
    names = before.names.get(metric, [])
    if len(names) < 2 or any(run.result.names.get(metric) != names for run in runs):
        return None
    after = [run.result.scores[metric] for run in runs]
    groups = before.groups.get(metric)
    if groups and max(groups) < 1:
        return None
    found = paired_difference(after, before.scores[metric], before.weights[metric], groups=groups)
    interval: Interval = Interval.from_dict(found.as_dict())
    return interval.without_verdict(WITHHELD) if has_single_origin([run.job for run in runs]) else interval


class InstructionResult(Record):
    """Which of the included instructions a model follows.

    Attributes:
        followed: Whether the answer passes all checks, for each instruction.
        answers: The answers.
        unfinished: Number of answers that were cut.
    """

    followed: list[bool]
    answers: list[str]
    unfinished: int


@register("instructions", summary="share of checkable instructions that a chat model follows")
class InstructionJob(Job):
    """Generate answers to the included instructions and check them.

    Attributes:
        model: The model.
        version: Content of the instructions, as a hash.
    """

    model: Model
    version: str

    result_type: ClassVar[type[Record]] = InstructionResult
    setting: ClassVar[str] = "evaluate.instructions"

    def run(self, context: RunContext) -> InstructionResult:
        """Generate the answers and check them."""
        from acclimate.evaluation.instructions import measure_instructions  # imports torch

        measure = context.backend.others.get(self.name, measure_instructions)
        return InstructionResult.from_dict(measure(context.path(self.model)))

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that there is a causal model with a chat template."""
        from acclimate.models.loading import load_tokenizer

        check_causal(inputs, "'evaluate.instructions'")
        for name, checkpoint in inputs.checkpoints.items():
            if is_causal(checkpoint.path) and not load_tokenizer(checkpoint.path).chat_template:
                raise UserError(
                    f"study: 'evaluate.instructions' needs a chat template, and the tokenizer of '{name}' has none; "
                    "remove it, or use the instruction-tuned model."
                )

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add a job for each causal model."""
        from acclimate.evaluation.instructions import included_version

        if reads_prompts(planner, subject):
            planner.add(cls(place=subject.place, model=subject.model, version=included_version()))

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> list[str]:
        """Return the instructions."""
        return [INSTRUCTIONS]

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return a table of the share of instructions that each model follows, compared with the base model."""
        groups = view.group(InstructionResult)
        rows, measured = [], []
        for runs in groups.values():
            place = runs[0].job.place
            base = groups.get((place.model, place.domain, None, None, None, None, None), [])
            shares = [100 * float(np.mean(run.result.followed)) for run in runs]
            entry = _compare_instructions(runs, base) if base and place.method is not None else None
            label = row_label(place.method, place.adapted_for)
            cut = float(np.mean([run.result.unfinished for run in runs]))
            rows.append([place.model, place.domain, label, float(np.mean(shares)), *difference_cells(entry), cut])
            if entry:
                measured.append(
                    measurement(place, INSTRUCTIONS, base[0].result.followed, np.mean(shares) / 100, entry)
                )
        if not rows:
            return {}
        count = len(next(iter(groups.values()))[0].result.followed)
        note = (
            f"Share of {count} instructions whose greedy answer, with the chat template, passes all checks of its "
            "form (sentences, words, lists, JSON, capital letters). Means over seeds of adaptation. Difference: to "
            "the base model, in percentage points, paired by instruction. Cut: answers that did not end by themselves."
        )
        columns = ["model", "domain", "method", "followed, %", *DIFFERENCE, "cut"]
        table = ReportTable(title="Instruction-following", note=note, columns=columns, rows=rows, digits=1)
        return {"tables": [table], "capabilities": measured}


def _compare_instructions(
    runs: Sequence[JobResult[InstructionResult]], base: Sequence[JobResult[InstructionResult]]
) -> Interval | None:
    before = [int(value) for value in base[0].result.followed]
    after = [[int(value) for value in run.result.followed] for run in runs]
    found = paired_bootstrap([1] * len(before), after, [before] * len(after), "accuracy")
    interval: Interval = Interval.from_dict(found.as_dict())
    return interval.without_verdict(WITHHELD) if has_single_origin([run.job for run in runs]) else interval
