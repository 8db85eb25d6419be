"""Planning the job graph of a study from its inputs and the settings that a search chose."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acclimate.base.errors import Problems, UserError
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import StudyInputs, read_inputs
from acclimate.study.job import Job, JobGraph, Planner, used_kinds
from acclimate.study.method_inputs import read_method
from acclimate.study.settings import UNADAPTED, TaskSpec

SearchPlace = tuple[str, str, str, str]
"""Model, domain, task and row label; the model is empty for the teacher of a row of distillation."""
Combination = Mapping[tuple[str, str], Any]
"""Values by (section, name)."""


@dataclass(frozen=True)
class Choice:
    """Settings that override those of the study.

    Attributes:
        sections: Settings by name, by section: ``"finetune"``, ``"adapt"``, ``"parameters"`` (of the method), or the
            section of another kind of job.
    """

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, combination: Combination) -> Choice:
        """Create a choice from a combination."""
        made = cls()
        for (section, name), value in combination.items():
            made.sections.setdefault(section, {})[name] = value
        return made

    def section(self, name: str) -> dict[str, Any]:
        """Return the settings of a section by name."""
        return self.sections.get(name, {})

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name; those of adaptation have the prefix ``adapt.``."""
        ordered = {"adapt": {}, "parameters": {}, **self.sections}
        return {
            f"adapt.{name}" if section == "adapt" else name: value
            for section, values in ordered.items()
            for name, value in values.items()
        }

    @property
    def text(self) -> str:
        """The settings in one line."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    def apply_to_task(self, task: TaskSpec) -> TaskSpec:
        """Return a task with these settings of fine-tuning."""
        return task.model_copy(update=self.section("finetune"))

    def apply_to_method(self, method: MethodSpec) -> MethodSpec:
        """Return a method with these parameters and settings of adaptation, and the same label."""
        return method.model_copy(
            update={**self.section("parameters"), "adapt": {**method.adapt, **self.section("adapt")}}
        )


Choices = Mapping[SearchPlace, Choice]


def read_study(config: StudyConfig, backend: Backend) -> StudyInputs:
    """Read the inputs of a study and validate them for every kind of job; nothing is trained.

    Raises:
        UserError: If the study cannot be run; it lists everything that is missing.
    """
    problems, extras, kinds = Problems(), dict[str, Any](), used_kinds(config)
    for kind in kinds:
        with problems.collect():
            extras[kind.name] = kind.read(config, backend)
    with problems.collect():
        inputs = read_inputs(config, backend, extras)
    problems.check()
    for kind in kinds:
        kind.check(inputs)
    return inputs.without(texts for kind in kinds for texts in kind.measured(inputs))


def plan(inputs: StudyInputs, choices: Choices | None = None) -> JobGraph:
    """Return the jobs of a study.

    Args:
        inputs: Inputs of the study.
        choices: The settings that a search chose; None without a search.
    """
    graph = JobGraph(plan_models(inputs).entries if choices is None else plan_chosen(inputs, choices).entries)
    return extend(graph, inputs, choices or {})


def plan_models(inputs: StudyInputs) -> JobGraph:
    """Return the jobs that make and measure the models of each domain, without those that :func:`extend` adds."""
    planner, kinds = Planner(inputs, JobGraph()), used_kinds(inputs.config)
    for model in inputs.config.models:
        for domain in inputs.config.domains:
            for subject in (subject for kind in kinds for subject in kind.models(planner, model, domain)):
                for kind in kinds:
                    kind.measure(planner, subject)
    return planner.graph


def extend(graph: JobGraph, inputs: StudyInputs, choices: Choices) -> JobGraph:
    """Return the graph with the jobs added that depend on the jobs of all models, such as distillations."""
    planner = Planner(inputs, JobGraph(graph.entries), choices)
    for kind in used_kinds(inputs.config):
        kind.finish(planner)
    return planner.graph


def narrow(
    inputs: StudyInputs,
    model: ModelSpec,
    domain: DomainSpec,
    task: TaskSpec | None,
    methods: Sequence[MethodSpec],
    choice: Choice,
) -> StudyInputs:
    """Return inputs restricted to one model, one task and some methods, with other settings.

    Args:
        inputs: Inputs of the study.
        model: The base model.
        domain: The domain.
        task: A task of the domain; None if it has none.
        methods: The methods.
        choice: The settings. If they include settings of adaptation or parameters, methods adapt once per task, since
            the settings may differ between tasks.
    """
    changed = [choice.apply_to_method(method) for method in methods]
    part = domain.model_copy(update={"tasks": [choice.apply_to_task(task)] if task else []})
    config = inputs.config.model_copy(
        update={"models": [model], "domains": [part], "methods": changed, "sections": {}}
    )
    found = dict(inputs.methods)
    if choice.section("adapt") or choice.section("parameters"):
        for method in changed:
            if method.name != UNADAPTED:
                scope = found[method.label]
                found[method.label] = replace(scope, parameters=read_method(method).parameters, per_task=True)
    return replace(inputs, config=config, methods=found)


def plan_chosen(inputs: StudyInputs, choices: Choices, domains: Sequence[DomainSpec] | None = None) -> JobGraph:
    """Return the jobs that make and measure all models with the settings chosen for each task.

    Args:
        inputs: Inputs of the study.
        choices: The chosen settings.
        domains: Domains to plan; None for all.
    """
    config = inputs.config
    graph, known = JobGraph(), set[Any]()
    for model, domain in itertools.product(config.models, config.domains if domains is None else domains):
        parts = [
            replace(inputs, config=config.model_copy(update={"models": [model], "domains": [domain], "methods": []}))
        ]
        tasks: list[TaskSpec | None] = [*domain.tasks] or [None]
        for task, method in itertools.product(tasks, config.methods):
            choice = choices.get((model.name, domain.name, task.name if task else "", method.label), Choice())
            parts.append(narrow(inputs, model, domain, task, [method], choice))
        for job in (job for part in parts for job in plan_models(part).entries):
            if (job.key, job.place) not in known:  # tasks of a domain share jobs such as the loss measurements
                known.add((job.key, job.place))
                graph.add(job)
    return graph


@dataclass(frozen=True)
class Shard:
    """The ``index``-th of ``count`` shares of the jobs, counted from 1; for job arrays."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard such as ``"2/4"``.

        Raises:
            UserError: If the text is not i/n with integers 1 <= i <= n.
        """
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text, flags=re.ASCII)
        shard = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise UserError(f"'{text}' is not a shard. Give i/n with i from 1 to n, for example 2/4.")
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def select(self, jobs: Mapping[str, Job]) -> list[str]:
        """Return the keys of this share, in execution order. Each job is in exactly one share.

        Shares are balanced greedily: groups of jobs are assigned by decreasing cost, each to the share with the lowest
        cost so far.
        """
        groups = sorted(_groups(jobs), key=lambda group: -sum(jobs[key].cost for key in group))
        loads = [0.0] * self.count
        own: set[str] = set()
        for group in groups:  # the sort is stable, so all shards see the same order
            least = loads.index(min(loads))
            loads[least] += sum(jobs[key].cost for key in group)
            if least == self.index - 1:
                own.update(group)
        return [key for key in jobs if key in own]


def _groups(jobs: Mapping[str, Job]) -> list[list[str]]:
    """Return groups of jobs for one process each: a job that makes a model, and all jobs that depend on it.

    A job that makes the common starting point of all methods forms a separate group; otherwise a study with one such
    model would be a single group. The jobs that depend on it wait until it is finished.
    """
    groups: dict[str, list[str]] = {}
    for key, job in jobs.items():
        root = [link for link in job.chain if not link.is_shared_base] or [job]
        groups.setdefault(root[-1].key, []).append(key)
    return list(groups.values())


def with_needs(keys: Sequence[str], jobs: Mapping[str, Job]) -> list[str]:
    """Return ``keys`` and the keys of all jobs that they depend on, in execution order."""
    wanted = {link.key for key in keys for link in jobs[key].chain}
    return [key for key in jobs if key in wanted]
