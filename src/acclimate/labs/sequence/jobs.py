"""Sequences: domains adapted one after the other, each stage from the model of the one before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import UserError, warn_once
from acclimate.base.records import Record
from acclimate.data.documents import Corpus
from acclimate.labs.sequence.planned import (
    SequenceSpec,
    check_names,
    domain_orders,
    sequence_labels,
    sequence_methods,
    sequence_role,
    sequence_section,
)
from acclimate.labs.sequence.report import matrix_table, sequence_matrices, sequence_tables, sequence_verdict
from acclimate.labs.sequence.rows import SequenceOrder, SequenceRow
from acclimate.labs.sequence.transfer import sequence_measures, spread_over_runs
from acclimate.results.study import Figure, StudyResults
from acclimate.study.backend import Backend
from acclimate.study.config import ModelSpec, StudyConfig
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import FORGETTING, Job, Model, Place, Planner, StudyView, register
from acclimate.study.jobs.adapt import Adaptation, AdaptJob, adapt_job, base_model
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.jobs.lm_loss import LmLossJob, TextLoss
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import UNADAPTED
from acclimate.study.summary import TaskResult

JOINT = "all domains at once"
"""Role of a job that adapts one model to the text of all domains, or measures it."""
SEPARATE = "one model per domain"


@dataclass(frozen=True)
class Stage:
    """The model after some domains.

    Attributes:
        method: Label of the method.
        domains: The domains so far, in the order of training.
        seed: Seed of adaptation.
        tuned: Seeds of fine-tuning that start from the model.
        job: The adaptation to the last of them.
    """

    method: str
    domains: tuple[str, ...]
    seed: int
    tuned: Sequence[int]
    job: AdaptJob

    @property
    def place(self) -> Place:
        """Its place in the study, with the domains so far as its role."""
        return self.job.place


@register("sequence", summary="adapt one model to several domains, one after the other")
class SequenceJobs(Job):
    """Plans the jobs of sequences, which are adaptations, losses and fine-tunings; there are no jobs of this kind.

    The adaptation to a domain depends on the domains before it only. So a stage is one job, however many orders begin
    with the same domains, and a domain that is added at the end of an order leaves all earlier jobs as they are.
    """

    row_type: ClassVar[type[Record] | None] = SequenceRow
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("sequence", SequenceSpec)

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> None:
        """Check the names in the section.

        Raises:
            UserError: If a method, a domain or an order does not exist, or settings of a method are searched.
        """
        check_names(config)

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Check that the methods adapt to the text of domains, and that there are as many orders as wanted."""
        if (spec := sequence_section(inputs.config)) is None:
            return
        for label in sequence_labels(inputs.config, spec):
            if any(
                task is not None
                for domain in inputs.config.domains
                for _, task in inputs.methods[label].scopes(domain)
            ):
                raise UserError(f"study: sequence: '{label}' adapts to each task separately; name other methods.")
        (order, *_), domains = domain_orders(inputs), inputs.config.domains
        without = [domain.name for domain in domains if domain.name in order and not domain.tasks]
        if spec.scores != "none" and 0 < len(without) < len(order):
            warn_once(
                f"study: sequence: {', '.join(without)} without a task: scores have measures only if every domain has "
                "one, so only losses are measured. Set 'scores: none' to fine-tune nothing."
            )

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add the stages of all methods, orders and seeds, and what is measured of them."""
        if (spec := sequence_section(planner.config)) is None:
            return
        inputs, orders = planner.inputs, domain_orders(planner.inputs)
        for model in planner.config.models:
            stages = _stages(inputs, spec, model, orders), _joint_models(inputs, spec, model, orders[0])
            for stage in itertools.chain(*stages):
                planner.add(stage.job)
                for job in _measurements(planner, spec, stage, orders):
                    planner.add(job)

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return one row per model, method and measure."""
        if (spec := sequence_section(view.inputs.config)) is None:
            return {}
        models = view.inputs.config.models
        return {cls.name: [row for model in models for row in _Measured.of(view, spec, model.name).rows(model)]}

    @classmethod
    def figures(cls) -> Sequence[Figure]:
        """Return the figures of the rows."""
        return (
            Figure(
                "sequences",
                "Domains one after the other",
                "Rows: the base model, then the model after each domain. Columns: the domain that it is measured "
                "on. The colour is the change from the base model, relative to the largest one of the matrix.",
                sequence_matrices,
                matrix_table,
            ),
        )

    tables, verdict = staticmethod(sequence_tables), staticmethod(sequence_verdict)

    @classmethod
    def describe_rows(cls, results: StudyResults) -> list[str]:
        """Return the mean of each method after the last domain."""
        means = [(row, row.measures["average"].mean) for row in results.rows[cls.name] if "average" in row.measures]
        return [f"domains in sequence, {row.method}: mean {row.measure} {mean:.3f}" for row, mean in means]


def _stages(
    inputs: StudyInputs, spec: SequenceSpec, model: ModelSpec, orders: Sequence[tuple[str, ...]]
) -> Iterator[Stage]:
    """Yield each stage of each method and seed once; a stage comes after those before it."""
    config, base = inputs.config, base_model(inputs, model)
    prefixes = dict.fromkeys(order[: number + 1] for order in orders for number in range(len(order)))
    for method in sequence_methods(config, sequence_labels(config, spec)):
        for number, seed in enumerate(config.adapt_seeds):
            made: dict[tuple[str, ...], Model] = {(): base}
            for domains in prefixes:
                place = Place(model=model.name, domain=domains[-1], method=method.label, adapt_seed=seed)
                job = adapt_job(inputs, method, made[domains[:-1]], place, seed).at(role=sequence_role(domains))
                made[domains] = job
                yield Stage(method.label, domains, seed, config.seeds[number :: len(config.adapt_seeds)], job)


def _joint_models(
    inputs: StudyInputs, spec: SequenceSpec, model: ModelSpec, domains: tuple[str, ...]
) -> Iterator[Stage]:
    """Yield the models that are adapted to all domains at once, with as many tokens as all stages together."""
    config, base = inputs.config, base_model(inputs, model)
    for method in sequence_methods(config, spec.joint):
        corpus = Corpus.of(text for name in domains for text in inputs.corpus(name, method.label))
        for number, seed in enumerate(config.adapt_seeds):
            place = Place(model=model.name, domain=domains[0], method=method.label, adapt_seed=seed)
            job = adapt_job(inputs, method, base, place, seed)
            limits = {name: job.options[name] for name in BUDGETS if name != "epochs" and job.options.get(name)}
            budget = {name: len(domains) * limit for name, limit in limits.items()}
            joint = replace(
                job,
                place=replace(place, domain=None, role=JOINT),
                corpus=corpus,
                settings={**job.settings, **budget},
                options={**job.options, **budget},
            )
            yield Stage(method.label, domains, seed, config.seeds[number :: len(config.adapt_seeds)], joint)


def _measurements(
    planner: Planner, spec: SequenceSpec, stage: Stage, orders: Sequence[tuple[str, ...]]
) -> Iterator[Job]:
    """Yield the losses and fine-tunings of a stage, on the domains that its orders have."""
    inputs, place, seen = planner.inputs, stage.place, stage.domains
    length, count = planner.config.evaluate.max_length, len(orders[0])
    for domain in (domain for domain in planner.config.domains if domain.name in orders[0]):
        here = replace(place, domain=domain.name)
        texts = inputs.heldout[domain.name]
        yield LmLossJob(place=replace(here, text="domain"), model=stage.job, texts=texts, max_length=length)
        learned = seen.index(domain.name) + 1 if domain.name in seen else count
        if place.role != JOINT and not spec.is_scored(len(seen), learned, count):
            continue
        for task, seed in itertools.product(domain.tasks if spec.scores != "none" else (), stage.tuned):
            choice = planner.settings.get((str(place.model), domain.name, task.name, stage.method))
            chosen = choice.apply_to_task(task) if choice else task
            yield FinetuneJob.of(inputs, domain.name, chosen, seed, here, stage.job)
    if inputs.general is not None:
        general = replace(place, domain=None, text="general")
        yield LmLossJob(place=general, model=stage.job, texts=inputs.general, max_length=length)


@dataclass
class _Measured:
    """Measurements of the sequences of one base model.

    Attributes:
        inputs: Inputs of the study.
        spec: The section.
        orders: The orders of the domains.
        values: By measure (``"loss"`` or ``"score"``), method, role, domain (None for general text) and seed of
            adaptation. Values of the base model have no method and no seed.
        seconds: Durations of the adaptations, by key.
    """

    inputs: StudyInputs
    spec: SequenceSpec
    orders: list[tuple[str, ...]]
    values: dict[tuple[Any, ...], float]
    seconds: dict[str, float]

    @classmethod
    def of(cls, view: StudyView, spec: SequenceSpec, model: str) -> _Measured:
        """Collect the results of the jobs."""
        config, inputs = view.inputs.config, view.inputs
        base = [method.label for method in config.methods if method.name == UNADAPTED]
        values, seconds = dict[tuple[Any, ...], float](), dict[str, float]()
        scores: dict[tuple[Any, ...], dict[str, list[float]]] = {}
        for job in view.graph.entries:
            place, result = job.place, view.outcomes[job.key].result
            if place.model != model or place.search is not None or place.adapted_for is not None:
                continue
            domain = None if place.text == "general" else place.domain
            key = (None if place.method in base else place.method, place.role, domain, place.adapt_seed)
            if isinstance(result, TextLoss):
                values["loss", *key] = result.nats
            elif isinstance(result, TaskResult) and isinstance(job, FinetuneJob) and place.role != FORGETTING:
                found = scores.setdefault(("score", *key), {}).setdefault(str(place.task), [])
                found.append(result.metrics[inputs.tasks[str(domain), str(place.task)].metric])
            elif isinstance(result, Adaptation):
                seconds[job.key] = result.total_seconds
        tasks = {domain.name: len(domain.tasks) for domain in config.domains}
        for key, by_task in scores.items():
            if len(by_task) == tasks[str(key[3])]:
                values[key] = float(np.mean([np.mean(runs) for runs in by_task.values()]))
        return cls(inputs, spec, domain_orders(inputs), values, seconds)

    def rows(self, model: ModelSpec) -> Iterator[SequenceRow]:
        """Yield the rows of each measure: the methods, compared with the first, separate models, and joint ones."""
        config, names = self.inputs.config, self.orders[0]
        labels = sequence_labels(config, self.spec)
        stages = list(_stages(self.inputs, self.spec, model, self.orders))
        jobs = {(stage.method, stage.domains, stage.seed): stage.job for stage in stages}
        scored = self.spec.scores != "none" and all(one.tasks for one in config.domains if one.name in names)
        for measure in ("loss", "score") if scored else ("loss",):
            first: dict[str, list[list[float | None]]] = {}
            for label in labels:
                values, orders = self._method(measure, label, jobs)
                differences = {name: _subtract(values[name], first[name]) for name in first}
                first = first or values
                yield SequenceRow(
                    model=model.name,
                    method=label,
                    measure=measure,
                    seeds=config.adapt_seeds,
                    orders=orders,
                    measures=_spreads(values),
                    differences=_spreads(differences),
                    reference=labels[0] if differences else "",
                )
            rivals = [(label, None, SEPARATE) for label in labels if not self.spec.replaces_domains(label)]
            for label, role, name in [*rivals, *((label, JOINT, JOINT) for label in self.spec.joint)]:
                found = self._matrix(measure, label, [role], names)
                changes = (-1 if measure == "loss" else 1) * (found[:, 1] - found[:, 0])
                averages = {"average": found[:, 1].mean(1), "gain": changes.mean(1)}
                yield SequenceRow(
                    model=model.name,
                    method=f"{label}, {name}",
                    measure=measure,
                    seeds=config.adapt_seeds,
                    orders=[],
                    measures=_spreads({key: [_known(one)] for key, one in averages.items()}),
                )

    def _method(
        self, measure: str, label: str, jobs: Mapping[Any, Job]
    ) -> tuple[dict[str, list[list[float | None]]], list[SequenceOrder]]:
        """Return the measures (orders, seeds) of a method by name, and what was measured of each order."""
        seeds, orders = self.inputs.config.adapt_seeds, []
        found: dict[str, list[list[float | None]]] = {}
        labels = (label, *sequence_labels(self.inputs.config, self.spec))
        alone = next((one for one in labels if not self.spec.replaces_domains(one)), None)
        for order in self.orders:
            roles = [sequence_role(order[: number + 1]) for number in range(len(order))]
            matrices = self._matrix(measure, label, roles, order)
            separate = self._matrix(measure, alone, [None], order)[:, 1] if alone else [None] * len(seeds)
            measured = [
                sequence_measures(matrix, lower_is_better=measure == "loss", separate=one)
                for matrix, one in zip(matrices, separate, strict=True)
            ]
            for name in measured[0]:
                found.setdefault(name, []).append([one[name] for one in measured])
            last = [jobs[label, order, seed] for seed in seeds]
            times = [[self.seconds.get(one.key, np.nan) for one in job.chain if one.makes_model] for job in last]
            general = self._matrix(measure, label, roles, [None]).mean(0)[:, 0] if measure == "loss" else []
            orders.append(
                SequenceOrder(
                    domains=list(order),
                    matrix=[_known(row) for row in matrices.mean(0)],
                    general=_known(general) if np.isfinite(general).any() else [],
                    folders=[f"models/{job.key}" for job in last],
                    seconds=_known([float(np.mean([sum(time) for time in times]))])[0],
                )
            )
        return found, orders

    def _matrix(
        self, measure: str, method: str, roles: Sequence[str | None], domains: Sequence[str | None]
    ) -> np.ndarray:
        """Return values (seeds, roles + 1, domains), with the base model as the first role."""
        base = [self.values.get((measure, None, None, domain, None), np.nan) for domain in domains]
        return np.array(
            [
                [base]
                + [[self.values.get((measure, method, role, one, seed), np.nan) for one in domains] for role in roles]
                for seed in self.inputs.config.adapt_seeds
            ]
        )


def _known(values: Iterable[float]) -> list[float | None]:
    """Return numbers, None for NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]


def _subtract(one: list[list[float | None]], other: list[list[float | None]]) -> list[list[float | None]]:
    """Return the differences of values, None where one is missing."""
    return [
        [None if a is None or b is None else a - b for a, b in zip(*rows, strict=True)]
        for rows in zip(one, other, strict=True)
    ]


def _spreads(values: Mapping[str, list[list[float | None]]]) -> dict[str, Any]:
    """Return the means and intervals of measures, without those that are unknown."""
    found = {name: spread_over_runs(one) for name, one in values.items()}
    return {name: spread for name, spread in found.items() if spread is not None}
