"""Merge jobs: adapted models with a chat vector, or interpolated with their base model, as rows of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from acclimate.errors import UserError, unknown_name_error
from acclimate.options.training import Number
from acclimate.records import Record
from acclimate.results import MethodRow
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs
from acclimate.study.jobs.adapt import adapted_models
from acclimate.study.jobs.base import Job, Planner, RunContext, StudyModel, register
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import UNADAPTED


class MergeSpec(SectionEntry):
    """An entry of ``merges``.

    Attributes:
        of: Label of the method whose models are merged.
        method: ``"chat-vector"`` or ``"interpolation"``.
        instruct: The instruction-tuned model, for ``"chat-vector"``.
        weight: Weight of the chat vector.
        alpha: Share of the adapted model, for ``"interpolation"``.
    """

    of: str
    method: Literal["chat-vector", "interpolation"]
    instruct: str | None = None
    weight: Annotated[Number, Field(ge=-1000, le=1000)] | None = None
    alpha: Annotated[Number, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> MergeSpec:
        chat = self.method == "chat-vector"
        needed, other = ("instruct", "alpha") if chat else ("alpha", "instruct")
        if getattr(self, needed) is None:
            raise ValueError(f"{self.method} needs '{needed}'")
        if getattr(self, other) is not None or (not chat and self.weight is not None):
            raise ValueError(f"{self.method} has no '{other if getattr(self, other) is not None else 'weight'}'")
        weight = "" if self.weight in (None, 1) else f"{self.weight:g} "
        part = f"{weight}chat vector" if chat else f"base model, alpha {self.alpha:g}"
        self.label = self.label or f"{self.of} + {part}"
        return self

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the path of the instruction-tuned model absolute."""
        self.instruct = self.instruct and resolve(self.instruct)

    @property
    def settings(self) -> dict[str, float]:
        """Options of :func:`acclimate.merge`."""
        if self.method == "interpolation":
            return {"alpha": float(self.alpha or 0)}
        return {"weights": 1.0 if self.weight is None else float(self.weight)}


@dataclass(frozen=True)
class PlannedMerge:
    """An entry of ``merges``, the method that it names, and the instruction-tuned model."""

    spec: MergeSpec
    method: MethodSpec
    instruct: Checkpoint | None


@dataclass(kw_only=True, eq=False)
class Merged(Record):
    """The result of a merge: what was not merged, as text."""

    notes: list[str]


@register("merge", summary="merge adapted models with other models")
@dataclass(frozen=True, kw_only=True, eq=False)
class MergeJob(Job):
    """Merge an adapted model with its base model, or with a chat vector.

    Attributes:
        model: The job that makes the adapted model.
        base: The base model.
        instruct: The instruction-tuned model; None for an interpolation.
        method: Method of merging.
        settings: Its options.
    """

    model: Job
    base: Checkpoint
    instruct: Checkpoint | None
    method: str
    settings: dict[str, float]

    cost: ClassVar[float] = 0.2
    result_type: ClassVar[type[Record]] = Merged
    makes_model: ClassVar[bool] = True
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("merges", MergeSpec)

    def run(self, context: RunContext) -> Merged:
        """Write the merged model to the folder of the job."""
        result = context.backend.merge(
            context.path(self.model),
            self.method,
            context.folder(self),
            base=self.base.path,
            instruct=self.instruct and self.instruct.path,
            progress=context.progress,
            overwrite=True,
            **self.settings,
        )
        return Merged(notes=list(result.notes))

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> list[PlannedMerge]:
        """Return the entries with their methods and models."""
        methods = {method.label: method for method in config.methods if method.name != UNADAPTED}
        found = []
        for spec in config.sections.get("merges", []):
            if spec.of not in methods:
                raise unknown_name_error(f"method under 'of' in '{spec.label}' of merges:", spec.of, methods)
            method = methods[spec.of]
            lists = [config.search_lists(task, [method]) for _, task in config.searched_tasks]
            if any(section != "finetune" for keys in lists for section, _ in keys):
                raise UserError(
                    f"study: merges: the settings of '{spec.of}' are searched, so which models to merge is not known "
                    "beforehand; name a method whose adaptation is not searched."
                )
            try:
                instruct = Checkpoint.read(spec.instruct) if spec.instruct else None
            except UserError as error:
                raise UserError(f"study: merges: '{spec.label}': {error}") from error
            found.append(PlannedMerge(spec, method, instruct))
        return found

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterator[StudyModel]:
        """Yield the merged models of each entry, one per adapted model."""
        inputs = planner.inputs
        if not planner.config.sections.get("merges"):  # in the part of a search that plans single methods
            return
        for entry in inputs.extras[cls.name]:
            for subject in adapted_models(inputs, entry.method, model, domain):
                place = replace(subject.place, method=entry.spec.label)
                job = cls(
                    place=place,
                    model=subject.model,  # type: ignore[arg-type]
                    base=inputs.checkpoints[model.name],
                    instruct=entry.instruct,
                    method=entry.spec.method,
                    settings=entry.spec.settings,
                )
                yield replace(subject, model=planner.add(job), place=place)

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return one row per entry."""
        return [
            MethodRow(
                label=entry.spec.label,
                name=entry.spec.method,
                parameters={"of": entry.spec.of, **entry.spec.settings},
            )
            for entry in inputs.extras[cls.name]
        ]
