# ruff: noqa: B027 (hooks that most kinds do not need)
"""What every kind of job is made of: identity, place in the study, work, and rows of the results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from acclimate.records import Record, fingerprint, identity
from acclimate.results import MethodRow
from acclimate.study.backend import Backend
from acclimate.study.config import KINDS, DomainSpec, ModelSpec, SectionEntry, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs

FORMAT = 2
"""Version of the identity and of the results of jobs. Raising it computes all jobs again."""
HEAD = "warm-up of the missing head"
"""Stands for the method of the job that trains a language-model head for a checkpoint without one."""
FORGETTING = "forgetting"
"""Role of a job that measures forgetting on a task of another domain."""

R = TypeVar("R", bound=Record)
register = KINDS.register


@dataclass(frozen=True)
class Place:
    """Where a job stands in a study; None for what does not apply. It is not part of the job's identity.

    Attributes:
        model: Name of the base model, or of the student of a distillation.
        domain: Name of the domain.
        method: Row label; None for measurements of the base model itself.
        adapted_for: The task that the model was adapted for alone.
        task: The task that the job is about.
        text: ``"domain"`` or ``"general"``: the text that is read.
        adapt_seed: Seed of adaptation.
        seed: Seed of fine-tuning.
        role: :data:`FORGETTING`, or None.
        search: The settings that a search tries.
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
        """What jobs that differ only in seeds have in common."""
        return (self.model, self.domain, self.method, self.adapted_for, self.task, self.text, self.role)

    def __str__(self) -> str:
        task = None if self.adapted_for == self.task else self.adapted_for
        shown = (self.model, self.domain, self.method, task, self.task, self.text)
        seeds = (self.adapt_seed, self.seed, self.role, self.search)
        return " · ".join(str(value) for value in (*shown, *seeds) if value not in (None, ""))


@dataclass(frozen=True)
class RunContext:
    """What a job needs to run.

    Attributes:
        backend: The functions that it calls.
        out: Folder of the study.
        progress: Whether to show progress bars.
    """

    backend: Backend
    out: Path
    progress: bool = False

    def folder(self, job: Job) -> Path:
        """Return the folder of the model that a job makes."""
        return self.out / "models" / job.key

    def path(self, model: Model) -> str:
        """Return the path of a model, or its name on the Hub."""
        return model.path if isinstance(model, Checkpoint) else str(self.folder(model))


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(ABC):
    """A unit of work and of recovery, identified by its fields.

    A subclass declares its inputs and settings as fields, defaults included; ``compare=False`` marks a field that
    cannot change the result. A field that holds a model is a :class:`Checkpoint` or the job that makes it.

    Attributes:
        place: Where it stands in the study.
        name: Name of the kind, set by ``@register``.
        cost: Typical cost relative to a fine-tuning. It balances shards, so all processes of a study must agree on it.
        result_type: Dataclass of the result.
        makes_model: Whether it writes a model into its folder.
        shows_progress: Whether it shows a progress bar itself.
        section: Key of a list in the study file that configures the kind, and the type of its entries.
    """

    place: Place = field(compare=False)
    name: ClassVar[str]
    cost: ClassVar[float] = 1.0
    result_type: ClassVar[type[Record]]
    makes_model: ClassVar[bool] = False
    shows_progress: ClassVar[bool] = False
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = None

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result, as plain values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        return {name: value.key if isinstance(value, Job) else identity(value) for name, value in values.items()}

    @cached_property
    def key(self) -> str:
        """16 hex digits of the hash of the kind and the identity."""
        return fingerprint({"format": FORMAT, "kind": self.name, **self.identity})

    @cached_property
    def needs(self) -> Job | None:
        """The job whose model is read; None if none is."""
        values = (getattr(self, entry.name) for entry in fields(self))
        return next((value for value in values if isinstance(value, Job)), None)

    @property
    def chain(self) -> list[Job]:
        """The job, what it needs, and so on."""
        links: list[Job] = [self]
        while (needed := links[-1].needs) is not None:
            links.append(needed)
        return links

    @property
    def description(self) -> str:
        """One line for messages."""
        return f"{self.name} · {self.place}"

    @property
    def is_shared_base(self) -> bool:
        """Whether all methods start from its model, so that it is a shard group of its own."""
        return False

    def at(self, **changes: Any) -> Self:
        """Return the same job at another place."""
        return replace(self, place=replace(self.place, **changes))

    @abstractmethod
    def run(self, context: RunContext) -> Record:
        """Do the work; return an instance of :attr:`result_type`."""

    def stage_seconds(self, result: Any, view: StudyView) -> dict[str, float] | None:
        """Return the seconds of each stage on the way to the result; None if a stage has no result any more."""
        return {}

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> Any:
        """Read and check what only this kind needs; it becomes ``inputs.extras[name]``."""
        return None

    @classmethod
    def check(cls, inputs: StudyInputs) -> None:
        """Raise UserError if the study cannot be run as far as this kind is concerned."""

    @classmethod
    def sources(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterable[Source]:
        """Add the jobs that make models to measure, and yield these models."""
        return ()

    @classmethod
    def measure(cls, planner: Planner, source: Source) -> None:
        """Add the jobs that measure a model."""

    @classmethod
    def finish(cls, planner: Planner) -> None:
        """Add the jobs that depend on those of all models."""

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return the row labels that the kind brings, with their parameters."""
        return []

    @classmethod
    def rows(cls, view: StudyView) -> dict[str, list[Any]]:
        """Return rows for fields of :class:`acclimate.results.StudyResults`, by name of the field."""
        return {}


Model = Checkpoint | Job


def kinds() -> list[type[Job]]:
    """Return all registered kinds of jobs, sorted by name."""
    return [KINDS.lookup(name) for name in KINDS.names()]


@dataclass(frozen=True)
class Source:
    """A model that the study measures in a domain.

    Attributes:
        model: The model.
        place: Its place: base model, domain, row label, seed of adaptation.
        domain: The domain, with the tasks that the model is for.
        seeds: Seeds of fine-tuning that start from it.
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
        """Whether it is the base model itself, measured as the reference of the others."""
        return self.place.method is None


class JobGraph:
    """Jobs in the order of work, each once, and all places that they fill.

    Attributes:
        jobs: By key; a job comes after the one that it needs.
        entries: One entry per place; several may be the same job.
    """

    def __init__(self, entries: Iterable[Job] = ()) -> None:
        self.jobs: dict[str, Job] = {}
        self.entries: list[Job] = []
        for job in entries:
            self.add(job)

    def add(self, job: Job) -> Job:
        """Add a job at its place unless it is there already; return it."""
        self.entries.append(job)
        for link in reversed(job.chain):
            self.jobs.setdefault(link.key, link)
        return job


@dataclass(frozen=True)
class Planner:
    """What kinds of jobs plan with.

    Attributes:
        inputs: What the study names.
        graph: The jobs so far, to be extended.
        settings: From model, domain, task and row label to the settings that a search chose, see
            :class:`acclimate.study.graph.Choice`; empty without a search.
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
        state: ``"done"`` by this call, ``"reused"``, ``"failed"``, ``"blocked"`` by a job that failed, or
            ``"missing"``: left to other processes.
        result: Its result; None if there is none.
        error: Why there is none.
        seconds: Duration.
    """

    job: Job
    state: str
    result: Any = None
    error: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """One line for the terminal."""
        if self.state == "done":
            return f"✓ {self.job.description} ({self.seconds:.1f} s)"
        return f"✗ {self.job.description}: {self.error}"


class Measured(NamedTuple, Generic[R]):
    """A job with its result."""

    job: Job
    result: R


@dataclass(frozen=True)
class StudyView:
    """Finished jobs, for the rows of the results.

    Attributes:
        inputs: What the study names.
        graph: Its jobs.
        outcomes: By key, those of a search included.
        out: Folder of the study.
    """

    inputs: StudyInputs
    graph: JobGraph
    outcomes: Mapping[str, Outcome]
    out: Path

    def find(self, kind: type[R], accept: Callable[[Job], bool] = lambda job: True) -> Iterator[Measured[R]]:
        """Yield each entry of the graph whose result is of a kind, with the result."""
        for job in self.graph.entries:
            result = self.outcomes[job.key].result
            if isinstance(result, kind) and accept(job):
                yield Measured(job, result)

    def group(
        self, kind: type[R], accept: Callable[[Job], bool] = lambda job: True
    ) -> dict[tuple[str | None, ...], list[Measured[R]]]:
        """Return the same by :attr:`Place.row`, seeds in the order of the study."""
        found: dict[tuple[str | None, ...], list[Measured[R]]] = {}
        for entry in self.find(kind, accept):
            found.setdefault(entry.job.place.row, []).append(entry)
        order = {seed: place for place, seed in enumerate(self.inputs.config.seeds)}
        for entries in found.values():
            entries.sort(key=lambda entry: order.get(entry.job.place.seed or 0, 0))
        return found


def place_values(place: Place) -> dict[str, Any]:
    """Return what of a place applies, as plain values."""
    return {name: value for name, value in asdict(place).items() if value is not None}
