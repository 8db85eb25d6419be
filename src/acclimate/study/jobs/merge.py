"""Merge jobs: adapted models merged with each other, their base model or a chat vector, as rows of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.records import Record
from acclimate.merging.base import MERGES, Merge
from acclimate.merging.options import MergeOptions
from acclimate.results.study import MethodRow
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs
from acclimate.study.job import Job, Model, Planner, RunContext, StudyModel, register
from acclimate.study.jobs.adapt import adapted_models
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import UNADAPTED, as_list


class MergeSpec(SectionEntry):
    """An entry of ``merges``.

    Attributes:
        of: Label of the method whose models are merged, or several, whose models of the same seed are merged with each
            other. A soup of one method merges the models of all seeds.
        method: The merge: its name, or its name with parameters.
    """

    of: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]
    method: Any

    @model_validator(mode="after")
    def _consistent(self) -> MergeSpec:
        try:
            if isinstance(self.method, Merge):
                self.method = {self.method.name: self.method.settings()}
            merge = self.merge
            if not merge.in_studies:
                raise ValueError(f"{merge.name} is not for studies, which lack the models or data that it needs")
            if not merge.writes_model:
                raise ValueError(f"{merge.name} needs 'alpha'")
            if merge.several is False and len(self.of) > 1:
                raise ValueError(f"{merge.name} merges the models of one method, not of {len(self.of)}")
            if self.merges_seeds and getattr(merge, "weights", None) is not None:
                raise ValueError("a soup of all seeds has equal weights")
            merge.resolve(len(self.of) + (merge.data == "each"))
        except UserError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        self.label = self.label or merge.label(" + ".join(self.of))
        return self

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the paths of further models absolute."""
        cls, settings = MERGES.parse(self.method)
        if cls.models:
            self.method = {cls.name: settings | {name: resolve(str(settings[name])) for name in cls.models}}

    @property
    def merge(self) -> Merge:
        """The merge."""
        return MERGES.read(self.method)

    @property
    def merges_seeds(self) -> bool:
        """Whether the models of all seeds become one."""
        return self.merge.several is True and self.merge.data is None and len(self.of) == 1


@dataclass(frozen=True)
class PlannedMerge:
    """An entry of ``merges``, its merge, and the methods that it names."""

    spec: MergeSpec
    merge: Merge
    methods: list[MethodSpec]


class Merged(Record):
    """The result of a merge: what was not merged, as text."""

    notes: list[str]


@register("merge", summary="merge adapted models with other models")
class MergeJob(Job):
    """Merge an adapted model with its base model, a chat vector, or other adapted models.

    Attributes:
        model: The job that makes the adapted model.
        base: The base model; None for a merge without one.
        method: What determines the merge, defaults included.
        settings: Options of ``merge``, defaults included.
        merge: The merge.
        others: The other models that are merged.
        data: Text on which each model is measured; empty for merges that measure nothing.
    """

    model: Job
    base: Checkpoint | None
    method: Mapping[str, Any]
    settings: Mapping[str, Any]
    merge: Merge = field(compare=False)
    others: tuple[Model, ...] = ()
    data: tuple[Any, ...] = ()

    cost: ClassVar[float] = 0.2
    result_type: ClassVar[type[Record]] = Merged
    makes_model: ClassVar[bool] = True
    options_type: ClassVar[type[Any] | None] = MergeOptions
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("merges", MergeSpec)

    def run(self, context: RunContext) -> Merged:
        """Write the merged model to the folder of the job."""
        models = [context.path(model) for model in (self.model, *self.others)]
        result = context.backend.merge(
            models if self.others else models[0],
            self.merge,
            context.folder(self),
            base=self.base and self.base.path,
            data=list(self.data) or None,
            progress=context.progress,
            overwrite=True,
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
            merge = spec.merge
            if merge.data and not config.general:
                raise UserError(
                    f"study: merges: '{spec.label}' measures the base model on general text; give 'general'."
                )
            try:
                for name in merge.models:
                    Checkpoint.read(getattr(merge, name))
            except UserError as error:
                raise UserError(f"study: merges: '{spec.label}': {error}") from error
            found.append(PlannedMerge(spec, merge, [methods[label] for label in spec.of]))
        return found

    @classmethod
    def models(cls, planner: Planner, model: ModelSpec, domain: DomainSpec) -> Iterator[StudyModel]:
        """Yield the merged models of each entry: one per adapted model, or one for all seeds."""
        inputs = planner.inputs
        for entry in inputs.extras[cls.name]:
            spec, merge = entry.spec, entry.merge
            for subject, others in _group(inputs, entry, model, domain):
                place = replace(subject.place, method=spec.label)
                data: tuple[Any, ...] = ()
                if merge.data:
                    others.append(subject.base)
                    data = _measured_on(inputs, entry, domain)
                job = cls(
                    place=place,
                    model=subject.model,  # type: ignore[arg-type]
                    base=inputs.checkpoints[model.name] if merge.needs_base else None,
                    method=merge.resolve(1 + len(others)).identity(),
                    settings=inputs.options[cls.name],
                    merge=merge,
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
                name=entry.merge.name,
                parameters={"of": ", ".join(entry.spec.of), **entry.merge.settings()},
            )
            for entry in inputs.extras[cls.name]
        ]


def _group(
    inputs: StudyInputs, entry: PlannedMerge, model: ModelSpec, domain: DomainSpec
) -> Iterator[tuple[StudyModel, list[Any]]]:
    """Yield the first of the models that are merged, and the others.

    A model that was adapted to the text of a task is merged with those that were, and with those of the domain.
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
    """Return the domain text for each adapted model, and general text that the study does not measure on."""
    if inputs.unmeasured is None:
        raise UserError(
            f"study: merges: '{entry.spec.label}' measures the base model on general text that the study does not "
            "measure losses on; give more of it."
        )
    return (*(inputs.corpus(domain.name, method.label) for method in entry.methods), inputs.unmeasured)
