"""The base class of jobs, and the job graph, planner, outcomes and views that jobs are used with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, dataclass_transform

from acclimate.base.records import Record, fingerprint, identity
from acclimate.results.study import JOB_KINDS, MethodRow, ResultKind, StageName
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs, Texts
from acclimate.study.sections import SectionEntry

FORMAT = 3
"""Version of job identities and results. Increasing it invalidates all stored results."""
HEAD = "warm-up of the missing head"
"""Replaces the method in the place of a job that trains a missing language-model head."""
FORGETTING = "forgetting"
"""Role of a job that measures forgetting on a task of another domain."""

R = TypeVar("R", bound=Record)
register = JOB_KINDS.register


@dataclass(frozen=True)
class Place:
    """The place of a job in a study. Fields that do not apply are None. It is not part of the job's identity.

    Attributes:
        model: Name of the base model, or of the student of a distillation.
        domain: Name of the domain.
        method: Row label; None for measurements of the base model itself.
        adapted_for: Name of the task that the model was adapted for, if it was adapted for a single task.
        task: Name of the end task.
        text: Text of a loss or drift measurement: ``"domain"`` or ``"general"``.
        adapt_seed: Seed of adaptation.
        seed: Seed of fine-tuning.
        role: :data:`FORGETTING`, or None.
        search: Settings of the trial, in one line, if the job belongs to a search.
    """

    model: str | None = None
    domain: str | None = None
    method: str | None = None
    adapted_for: str | None = None
    task: str | None = None
    text: str | None = None
    adapt_seed: int | None = None
    seed: int | None = None
    role: str | None = None
    search: str | None = None

    @property
    def row(self) -> tuple[str | None, ...]:
        """The fields that jobs that differ only in seeds have in common."""
        return (self.model, self.domain, self.method, self.adapted_for, self.task, self.text, self.role)

    def __str__(self) -> str:
        task = None if self.adapted_for == self.task else self.adapted_for
        shown = (self.model, self.domain, self.method, task, self.task, self.text)
        seeds = (self.adapt_seed, self.seed, self.role, self.search)
        return " · ".join(str(value) for value in (*shown, *seeds) if value not in (None, ""))


@dataclass(frozen=True)
class RunContext:
    """The context that jobs run in.

    Attributes:
        backend: Functions that load models.
        out: Folder of the study.
        progress: Whether to show progress bars.
        models: Folder of the study whose models are read; None for ``out``.
    """

    backend: Backend
    out: Path
    progress: bool = False
    models: Path | None = None

    def folder(self, job: Job) -> Path:
        """Return the folder of the model that a job makes."""
        return self.out / job.folder

    def path(self, model: Model) -> str:
        """Return the folder of a model, or its name on the Hub."""
        return model.path if isinstance(model, Checkpoint) else str((self.models or self.out) / model.folder)


@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True, eq=False)
class Job(ResultKind, ABC):
    """A unit of work and of recovery, identified by its fields.

    A subclass is a frozen dataclass, without a decorator, and declares as fields all inputs and settings, defaults
    included, that determine the result. A field with ``compare=False`` is not part of the identity. A field that holds
    a model is a :class:`Checkpoint` or the job that makes it.

    Attributes:
        place: Place in the study.
        cost: Typical cost relative to a fine-tuning. It balances shards, so all processes of a study must use the same
            value.
        result_type: Dataclass of the result.
        makes_model: Whether the job writes a model to its folder.
        keeps_model: Whether the model is made again if it is missing, even if no other job reads it.
        shows_progress: Whether the job shows a progress bar itself.
        counts_as_score: Whether jobs of this kind have a row in the score tables.
        options_type: Class of the options of the function that does the work; the defaults become
            ``inputs.options[name]``.
        stages: Names of stages that :meth:`stage_seconds` of this kind or another returns.
        section: Key of the list in the study file that configures the kind, and the type of its entries.
        setting: Setting of the study that turns the kind on, such as ``"evaluate.drift"``; empty for none.
    """

    place: Place = field(compare=False)
    cost: ClassVar[float] = 1.0
    result_type: ClassVar[type[Record]]
    makes_model: ClassVar[bool] = False
    keeps_model: ClassVar[bool] = False
    shows_progress: ClassVar[bool] = False
    counts_as_score: ClassVar[bool] = False
    options_type: ClassVar[type[Any] | None] = None
    stages: ClassVar[tuple[StageName, ...]] = ()
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = None
    setting: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, eq=False)(cls)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result: plain values, and fingerprints of models and data."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        return {name: _identify(value) for name, value in values.items()}

    @cached_property
    def key(self) -> str:
        """Fingerprint of the kind and the identity, 16 hex digits."""
        return fingerprint({"format": FORMAT, "kind": self.name, **self.identity})

    @cached_property
    def needed(self) -> tuple[Job, ...]:
        """The jobs that make the models that this job reads, which are fields or entries of a field."""
        values = (getattr(self, entry.name) for entry in fields(self))
        several = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(value for entries in several for value in entries if isinstance(value, Job))

    @property
    def needs(self) -> Job | None:
        """The first of them; None if this job reads no such model."""
        return next(iter(self.needed), None)

    @property
    def chain(self) -> list[Job]:
        """This job and all jobs that it depends on; each comes before those that it needs."""
        links: dict[str, Job] = {self.key: self}
        for needed in self.needed:
            for link in needed.chain:
                links.pop(link.key, None)  # it comes after all that need it
                links[link.key] = link
        return list(links.values())

    @property
    def folder(self) -> Path:
        """Where the job writes its model, in the folder of the study."""
        return Path("models") / self.key

    @property
    def description(self) -> str:
        """One line for messages."""
        return f"{self.name} · {self.place}"

    @property
    def is_scored(self) -> bool:
        """Whether the result is a score on a task of the domain, and not on one that measures forgetting."""
        return self.counts_as_score and self.place.role is None

    @property
    def is_shared_base(self) -> bool:
        """Whether all methods start from the model of this job; sharding then separates it from its dependents."""
        return False

    def at(self, **changes: Any) -> Self:
        """Return the same job with changes to its place."""
        return replace(self, place=replace(self.place, **changes))

    @abstractmethod
    def run(self, context: RunContext) -> Record:
        """Do the work; return an instance of :attr:`result_type`."""

    @property
    def price_group(self) -> tuple[str | None, ...]:
        """Jobs of one group take equally long for what they read, so that one of them is timed for all."""
        return (self.name, self.place.model, self.place.task)

    @property
    def states(self) -> str | None:
        """Identity of what the model reads, if the first job that reads it stores that for the others."""
        return None

    @property
    def relative_cost(self) -> float:
        """Roughly how long the job takes, relative to another of its kind that reads as much."""
        return 1.0

    def next_pilot(self, model: Checkpoint, timed: Sequence[Timed], seconds: float) -> Job | None:
        """Return a small job whose duration says how long this one takes; None if no other is needed, or none says it.

        Args:
            model: The base model, which it reads.
            timed: The pilots of this job that have run.
            seconds: About how long the last one should take, without loading.
        """
        return None

    def expected_seconds(self, timed: Sequence[Timed]) -> float:
        """Return the estimated duration of this job.

        Args:
            timed: The pilots of this job, or of another one of its kind, which have run.
        """
        raise NotImplementedError

    @property
    def reads_budget(self) -> bool:
        """Whether the budget of the study, such as a number of tokens, says how long the job trains."""
        return False

    def limited(self, **budget: float) -> Self:
        """Return the same job with another budget; only for jobs that read one."""
        raise NotImplementedError

    def corpus_tokens(self, pilot: Timed) -> float:
        """Return the estimated tokens of the text of a job that reads a budget, from one that has run."""
        raise NotImplementedError

    def stage_seconds(self, result: Any, view: StudyView) -> dict[str, float] | None:
        """Return the seconds of each stage that led to the result; None if the result of a stage is missing."""
        return {}

    @classmethod
    def is_used(cls, config: StudyConfig) -> bool:
        """Return whether a study plans jobs of this kind by itself; the methods below are called only then."""
        if cls.setting:
            return bool(attrgetter(cls.setting)(config))
        return cls.section is None or bool(config.sections.get(cls.section[0]))

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> Any:
        """Read and validate inputs that only this kind needs; the result becomes ``inputs.extras[name]``.

        Raises:
            UserError: If an input is invalid.
        """
        return None

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Raise UserError if the inputs are invalid for this kind."""

    @classmethod
    def measured(cls, inputs: StudyInputs) -> Iterable[Texts]:
        """Return texts that the kind measures on, which no model of the study is adapted to."""
        return ()

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterable[StudyModel]:
        """Add the jobs that make models from a base model, and yield the models to measure."""
        return ()

    @classmethod
    def measure(cls, planner: Planner, subject: StudyModel) -> None:
        """Add the jobs that measure a model."""

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add the jobs that depend on the jobs of all models."""

    @classmethod
    def search_stages(cls) -> Sequence[Callable[..., None]]:
        """Return the functions that plan searches of settings of this kind: see :data:`acclimate.study.search.Fill`.

        They run in this order, each with the settings that the earlier ones chose.
        """
        return ()

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return the rows that the kind adds to the list of methods: labels with parameters."""
        return []

    @classmethod
    def measurements(cls, inputs: StudyInputs) -> Iterable[str]:
        """Return the names of the measurements that a group of capabilities can contain."""
        return ()

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return rows for the results of the study, by name of the field of :class:`StudyResults` or of a kind.

        Rows that several kinds have are in a field, tables of plain values under ``"tables"``, and rows of a class of
        their own (:attr:`row_type`) under the name of the kind, or of another one that combines them.
        """
        return {}

    @classmethod
    def combine(cls, found: Sequence[Any], inputs: StudyInputs) -> list[Any]:
        """Return the rows of the kind, from those that this kind and others returned under its name."""
        return list(found)


Model = Checkpoint | Job


def _identify(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_identify(entry) for entry in value)
    return value.key if isinstance(value, Job) else identity(value)


@dataclass(frozen=True)
class Timed:
    """A pilot that has run.

    Attributes:
        job: The pilot.
        result: Its result.
        seconds: Its duration, with loading.
    """

    job: Any
    result: Any
    seconds: float


def extrapolate(timed: Sequence[Timed], size_of: Callable[[Any], int], job: Job) -> float:
    """Return the estimated seconds of a job that takes equally long for each of its rows.

    Args:
        timed: Pilots of few rows and of some more, or only the first.
        size_of: Returns the number of rows of a job.
        job: The job.
    """
    first, last = timed[0], timed[-1]
    few, some = size_of(first.job), size_of(last.job)
    per_row = max(0.0, last.seconds - first.seconds) / (some - few) if some > few else first.seconds / few
    return first.seconds + per_row * (size_of(job) - few)


def kinds() -> list[type[Job]]:
    """Return all registered kinds of jobs, sorted by name."""
    return [JOB_KINDS.lookup(name) for name in JOB_KINDS.names()]


def used_kinds(config: StudyConfig) -> list[type[Job]]:
    """Return the kinds of jobs that a study plans, sorted by name."""
    return [kind for kind in kinds() if kind.is_used(config)]


@dataclass(frozen=True)
class StudyModel:
    """A model that the study measures in a domain.

    Attributes:
        model: The model.
        place: Its place: base model, domain, row label, seed of adaptation.
        domain: The domain, with the tasks to fine-tune the model on.
        seeds: Seeds of fine-tuning that start from the model.
        base: The model that it was adapted from; None if the study did not adapt it.
        measures_loss: Whether its language-model loss is measured.
        measures_forgetting: Whether it is fine-tuned on tasks of other domains.
    """

    model: Model
    place: Place
    domain: DomainSpec
    seeds: list[int]
    base: Model | None = None
    measures_loss: bool = True
    measures_forgetting: bool = True

    @property
    def is_reference(self) -> bool:
        """Whether it is the base model itself, the reference for loss and forgetting."""
        return self.place.method is None


class JobGraph:
    """The jobs of a study in execution order.

    Attributes:
        jobs: The distinct jobs, by key; a job comes after the jobs that it needs.
        entries: One entry per place in the study; several places may share a job, and so its result.
    """

    def __init__(self, entries: Iterable[Job] = ()) -> None:
        self.jobs: dict[str, Job] = {}
        self.entries: list[Job] = []
        for job in entries:
            self.add(job)

    def add(self, job: Job) -> Job:
        """Add an entry, and its job and the jobs it needs unless the graph has them; return the job."""
        self.entries.append(job)
        for link in reversed(job.chain):
            self.jobs.setdefault(link.key, link)
        return job


@dataclass(frozen=True)
class Planner:
    """The inputs of a study and the graph that kinds of jobs add their jobs to.

    Attributes:
        inputs: Inputs of the study.
        graph: The graph to extend.
        settings: The settings that a search chose (:class:`acclimate.study.graph.Choice`), by model, domain, task and
            row label; empty without a search.
    """

    inputs: StudyInputs
    graph: JobGraph
    settings: Mapping[tuple[str, str, str, str], Any] = field(default_factory=dict)

    @property
    def config(self) -> StudyConfig:
        """The study."""
        return self.inputs.config

    def add(self, job: Job) -> Job:
        """Add a job to the graph."""
        return self.graph.add(job)


@dataclass
class Outcome:
    """The state of a job.

    Attributes:
        job: The job.
        state: ``"done"`` (computed now), ``"reused"`` (stored earlier), ``"failed"``, ``"blocked"`` (by the failure of
            a job it needs), or ``"missing"`` (not computed yet).
        result: The result; None if there is none.
        error: Why there is no result.
        seconds: Duration in seconds.
    """

    job: Job
    state: str
    result: Any = None
    error: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """Return one line for the terminal."""
        if self.state == "done":
            return f"✓ {self.job.description} ({self.seconds:.1f} s)"
        return f"✗ {self.job.description}: {self.error}"


class JobResult(NamedTuple, Generic[R]):
    """A job with its result."""

    job: Job
    result: R


@dataclass(frozen=True)
class StudyView:
    """The finished jobs of a study, from which the rows of the results are made.

    Attributes:
        inputs: Inputs of the study.
        graph: Jobs of the study.
        outcomes: Outcomes by key, including those of the jobs of a search.
        out: Folder of the study.
    """

    inputs: StudyInputs
    graph: JobGraph
    outcomes: Mapping[str, Outcome]
    out: Path

    def find(self, kind: type[R], accept: Callable[[Job], bool] = lambda job: True) -> Iterator[JobResult[R]]:
        """Yield each entry of the graph whose result has type ``kind`` and whose job is accepted, with the result."""
        for job in self.graph.entries:
            result = self.outcomes[job.key].result
            if isinstance(result, kind) and accept(job):
                yield JobResult(job, result)

    def group(
        self, kind: type[R], accept: Callable[[Job], bool] = lambda job: True
    ) -> dict[tuple[str | None, ...], list[JobResult[R]]]:
        """Return the entries of :meth:`find` grouped by :attr:`Place.row`, with seeds in the order of the study."""
        found: dict[tuple[str | None, ...], list[JobResult[R]]] = {}
        for entry in self.find(kind, accept):
            found.setdefault(entry.job.place.row, []).append(entry)
        order = {seed: index for index, seed in enumerate(self.inputs.config.seeds)}
        for entries in found.values():
            entries.sort(key=lambda entry: order.get(entry.job.place.seed or 0, 0))
        return found
