"""Merge jobs: adapted models merged with each other, their base model or a chat vector, as rows of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from acclimate.adaptation.options import Number
from acclimate.base.bounds import Fraction, SeedNumber
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.records import Record
from acclimate.merging.options import METHODS
from acclimate.results.study import MethodRow
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs
from acclimate.study.job import Job, Model, Planner, RunContext, StudyModel, register
from acclimate.study.jobs.adapt import adapted_models
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import UNADAPTED, as_list

Weight = Annotated[Number, Field(ge=-1000, le=1000)]
OPTIONS = {
    "chat-vector": ("instruct", "weight"),
    "interpolation": ("alpha",),
    "task-arithmetic": ("weights",),
    "soup": ("weights",),
    "fisher": ("weights", "seed"),
    "ties": ("weights", "density", "trim"),
    "dare-linear": ("weights", "density", "seed"),
    "dare-ties": ("weights", "density", "seed"),
}
"""The methods of merging that a study has, and the options of each."""


class MergeSpec(SectionEntry):
    """An entry of ``merges``.

    Attributes:
        of: Label of the method whose models are merged, or several, whose models of the same seed are merged with each
            other. A soup of one method merges the models of all seeds.
        method: Method of merging.
        instruct: The instruction-tuned model, for ``"chat-vector"``.
        weight: Weight of the chat vector.
        weights: Weight of each model; those of ``"fisher"`` end with that of the base model.
        alpha: Share of the adapted model, for ``"interpolation"``.
        density: Share of each difference that is kept.
        trim: Whether ``"ties"`` keeps that share of each tensor or of the whole model.
        seed: Random seed.
    """

    of: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]
    method: Literal[
        "chat-vector", "interpolation", "task-arithmetic", "soup", "fisher", "ties", "dare-linear", "dare-ties"
    ]
    instruct: str | None = None
    weight: Weight | None = None
    weights: list[Weight] | None = None
    alpha: Annotated[Number, Field(ge=0, le=1)] | None = None
    density: Fraction | None = None
    trim: Literal["tensor", "model"] | None = None
    seed: SeedNumber | None = None

    @model_validator(mode="after")
    def _consistent(self) -> MergeSpec:
        used = OPTIONS[self.method]
        for name in ("instruct", "alpha"):
            if name in used and getattr(self, name) is None:
                raise ValueError(f"{self.method} needs '{name}'")
        for name in dict.fromkeys(name for names in OPTIONS.values() for name in names):
            if name not in used and getattr(self, name) is not None:
                raise ValueError(f"{self.method} has no '{name}'")
        if METHODS[self.method].several is False and len(self.of) > 1:
            raise ValueError(f"{self.method} merges the models of one method, not of {len(self.of)}")
        count = len(self.of) + (self.method == "fisher")
        if self.weights is not None and (self.merges_seeds or len(self.weights) != count):
            raise ValueError(
                "a soup of all seeds has equal weights"
                if self.merges_seeds
                else f"there are {len(self.weights)} weights for {count} models"
            )
        self.label = self.label or self._describe()
        return self

    def _describe(self) -> str:
        of = " + ".join(self.of)
        if self.method == "interpolation":
            return f"{of} + base model, alpha {self.alpha:g}"
        if self.method == "chat-vector":
            return f"{of} + {'' if self.weight in (None, 1) else f'{self.weight:g} '}chat vector"
        return f"{of}{' + base model' if self.method == 'fisher' else ''}, {self.method}"

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the path of the instruction-tuned model absolute."""
        self.instruct = self.instruct and resolve(self.instruct)

    @property
    def merges_seeds(self) -> bool:
        """Whether the models of all seeds become one."""
        return self.method == "soup" and len(self.of) == 1

    @property
    def settings(self) -> dict[str, Any]:
        """Options of :func:`acclimate.merge`."""
        if self.method == "interpolation":
            return {"alpha": float(self.alpha or 0)}
        if self.method == "chat-vector":
            return {"weights": 1.0 if self.weight is None else float(self.weight)}
        given = {name: getattr(self, name) for name in OPTIONS[self.method]}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class PlannedMerge:
    """An entry of ``merges``, the methods that it names, and the instruction-tuned model."""

    spec: MergeSpec
    methods: list[MethodSpec]
    instruct: Checkpoint | None


@dataclass(kw_only=True, eq=False)
class Merged(Record):
    """The result of a merge: what was not merged, as text."""

    notes: list[str]


@register("merge", summary="merge adapted models with other models")
@dataclass(frozen=True, kw_only=True, eq=False)
class MergeJob(Job):
    """Merge an adapted model with its base model, a chat vector, or other adapted models.

    Attributes:
        model: The job that makes the adapted model.
        base: The base model; None for a method without one.
        instruct: The instruction-tuned model; None for other methods than chat-vector.
        method: Method of merging.
        settings: Its options.
        others: The other models that are merged.
        data: Text on which each model is measured; empty for methods that measure nothing.
    """

    model: Job
    base: Checkpoint | None
    instruct: Checkpoint | None
    method: str
    settings: dict[str, Any]
    others: tuple[Model, ...] = ()
    data: tuple[Any, ...] = ()

    cost: ClassVar[float] = 0.2
    result_type: ClassVar[type[Record]] = Merged
    makes_model: ClassVar[bool] = True
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("merges", MergeSpec)

    def run(self, context: RunContext) -> Merged:
        """Write the merged model to the folder of the job."""
        models = [context.path(model) for model in (self.model, *self.others)]
        given = {"base": self.base and self.base.path, "instruct": self.instruct and self.instruct.path}
        result = context.backend.merge(
            models if self.others else models[0],
            self.method,
            context.folder(self),
            **given,
            progress=context.progress,
            overwrite=True,
            **({"data": list(self.data)} if self.data else {}),
            **self.settings,
        )
        return Merged(notes=list(result.notes))

    @classmethod
    def read(cls, config: StudyConfig, backend: Backend) -> list[PlannedMerge]:
        """Return the entries with their methods and models."""
        methods = {method.label: method for method in config.methods if method.name != UNADAPTED}
        found = []
        for spec in config.sections.get("merges", []):
            for label in spec.of:
                if label not in methods:
                    raise unknown_name_error(f"method under 'of' in '{spec.label}' of merges:", label, methods)
                lists = [config.search_lists(task, [methods[label]]) for _, task in config.searched_tasks]
                if any(section != "finetune" for keys in lists for section, _ in keys):
                    raise UserError(
                        f"study: merges: the settings of '{label}' are searched, so which models to merge is not "
                        "known beforehand; name a method whose adaptation is not searched."
                    )
            if spec.merges_seeds and len(config.adapt_seeds) < 2:
                raise UserError(
                    f"study: merges: '{spec.label}' is a soup of the models of all seeds, and there is one; give more "
                    "'adapt_seeds', or several methods under 'of'."
                )
            if spec.method == "fisher" and not config.general:
                raise UserError(
                    f"study: merges: '{spec.label}' measures the base model on general text; give 'general'."
                )
            try:
                instruct = Checkpoint.read(spec.instruct) if spec.instruct else None
            except UserError as error:
                raise UserError(f"study: merges: '{spec.label}': {error}") from error
            found.append(PlannedMerge(spec, [methods[label] for label in spec.of], instruct))
        return found

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterator[StudyModel]:
        """Yield the merged models of each entry: one per adapted model, or one for all seeds."""
        inputs = planner.inputs
        if not planner.config.sections.get("merges"):  # in the part of a search that plans single methods
            return
        for entry in inputs.extras[cls.name]:
            spec = entry.spec
            for subject, others in _group(inputs, entry, model, domain):
                place = replace(subject.place, method=spec.label)
                data: tuple[Any, ...] = ()
                if spec.method == "fisher":
                    others.append(subject.base)
                    data = _measured_on(inputs, entry, domain)
                job = cls(
                    place=place,
                    model=subject.model,  # type: ignore[arg-type]
                    base=inputs.checkpoints[model.name] if METHODS[spec.method].needs_base else None,
                    instruct=entry.instruct,
                    method=spec.method,
                    settings=spec.settings,
                    others=tuple(others),
                    data=data,
                )
                yield replace(subject, model=planner.add(job), place=place)

    @classmethod
    def method_rows(cls, inputs: StudyInputs) -> list[MethodRow]:
        """Return one row per entry."""
        return [
            MethodRow(
                label=entry.spec.label,
                name=entry.spec.method,
                parameters={"of": ", ".join(entry.spec.of), **entry.spec.settings},
            )
            for entry in inputs.extras[cls.name]
        ]


def _group(
    inputs: StudyInputs, entry: PlannedMerge, model: ModelSpec, domain: DomainSpec
) -> Iterator[tuple[StudyModel, list[Any]]]:
    """Yield the first of the models that are merged, and the others.

    A model that was adapted to the text of a task is merged with those that were, and with those of the domain.

    Raises:
        UserError: If only later models were adapted to the text of single tasks.
    """
    first, *rest = [list(adapted_models(inputs, method, model, domain)) for method in entry.methods]
    if entry.spec.merges_seeds:
        for task in dict.fromkeys(subject.place.adapted_for for subject in first):
            one, *others = [subject for subject in first if subject.place.adapted_for == task]
            yield (
                replace(one, place=replace(one.place, adapt_seed=None), seeds=inputs.config.seeds),
                [other.model for other in others],
            )
        return
    for subject in first:
        place = subject.place
        merged: list[Any] = []
        for subjects in rest:
            found = {one.place.adapted_for: one.model for one in subjects if one.place.adapt_seed == place.adapt_seed}
            other = found.get(place.adapted_for) or found.get(None)
            if other is None:
                raise UserError(
                    f"study: merges: '{entry.spec.label}': name a method that adapts to the text of tasks first, and "
                    "those that adapt to the domain after it."
                )
            merged.append(other)
        yield subject, merged


def _measured_on(inputs: StudyInputs, entry: PlannedMerge, domain: DomainSpec) -> tuple[Any, ...]:
    """Return the domain text for each adapted model, and general text that the study does not measure on.

    Raises:
        UserError: If the study measures on all of the general text.
    """
    if inputs.unmeasured is None:
        raise UserError(
            f"study: merges: '{entry.spec.label}' measures the base model on general text that the study does not "
            "measure losses on; give more of it."
        )
    return (*(inputs.corpus(domain.name, method.label) for method in entry.methods), inputs.unmeasured)
