"""Merge jobs: adapted models merged with each other, their base model or a chat vector, as rows of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from acclimate.base.bounds import Count
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.records import Record
from acclimate.data.documents import Corpus
from acclimate.merging.base import MERGES, Merge
from acclimate.merging.options import TOP, MergeOptions
from acclimate.results.study import MethodRow
from acclimate.study.backend import Backend
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.inputs import Checkpoint, StudyInputs, unmeasured_part
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
        target: Whether each domain gets the models of the other domains, of which those are merged that fit its text.
        top: Number of models that are merged for ``target``.
        rank: What ranks them; see :class:`acclimate.merging.options.MergeOptions`.
    """

    of: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]
    method: Any
    target: bool = False
    top: Count = TOP
    rank: Literal["performance", "similarity"] = "performance"

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
            if (self.merges_seeds or self.target) and getattr(merge, "weights", None) is not None:
                why = "'target' selects the models, which have" if self.target else "a soup of all seeds has"
                raise ValueError(f"{why} equal weights")
            if self.target and (merge.data or not merge.selects):
                raise ValueError(f"'target' does not apply to {merge.name}")
            if not self.target and {"top", "rank"} & self.model_fields_set:
                raise ValueError("'top' and 'rank' are only read with 'target: true'")
            merge.resolve(self.top if self.target else len(self.of) + self.adds_base)
        except UserError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        of = " + ".join(self.of) + " of other domains" * self.target
        self.label = self.label or ("base model + " * self.starts_with_base + merge.label(of))
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
        merge = self.merge
        return merge.several is True and merge.data != "each" and len(self.of) == 1 and not self.target

    @property
    def starts_with_base(self) -> bool:
        """Whether the base model is the first of the models."""
        return self.merge.starts_with_base and len(self.of) == 1

    @property
    def adds_base(self) -> bool:
        """Whether the base model is one of the models that are merged with equal rights."""
        return self.merge.data == "each" or self.starts_with_base


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
        model: The first model.
        base: The base model; None for a merge without one.
        method: What determines the merge, defaults included.
        settings: Options of ``merge``, defaults included.
        merge: The merge.
        others: The other models that are merged.
        data: Text on which each model is measured; empty for merges that measure nothing.
        target: Text by which some of the models are selected; None for all models.
        select: Number of these models, and what ranks them; empty without ``target``.
        corpora: Text of each model, if their similarity to ``target`` ranks them.
    """

    model: Model
    base: Checkpoint | None
    method: Mapping[str, Any]
    settings: Mapping[str, Any]
    merge: Merge = field(compare=False)
    others: tuple[Model, ...] = ()
    data: tuple[Any, ...] = ()
    target: Corpus | None = None
    select: Mapping[str, Any] = field(default_factory=dict)
    corpora: tuple[Corpus, ...] = ()

    cost: ClassVar[float] = 0.2
    result_type: ClassVar[type[Record]] = Merged
    makes_model: ClassVar[bool] = True
    options_type: ClassVar[type[Any] | None] = MergeOptions
    section: ClassVar[tuple[str, type[SectionEntry]] | None] = ("merges", MergeSpec)

    def run(self, context: RunContext) -> Merged:
        """Write the merged model to the folder of the job."""
        models = [context.path(model) for model in (self.model, *self.others)]
        select = {"target": self.target, "corpora": list(self.corpora) or None, **self.select} if self.select else {}
        result = context.backend.merge(
            models if self.others else models[0],
            self.merge,
            context.folder(self),
            base=self.base and self.base.path,
            data=list(self.data) or None,
            **select,
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
            merge, others = spec.merge, (len(config.domains) - 1) * len(spec.of)
            if spec.target and others < max(2, spec.top):
                raise UserError(
                    f"study: merges: '{spec.label}' selects {spec.top} of {others} models of other domains; give more "
                    "'domains'."
                )
            if merge.data == "each" and not config.general:
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
            for subject, merged in _group(inputs, entry, model, domain):
                place = replace(subject.place, method=spec.label)
                if spec.adds_base:
                    merged.insert(0 if spec.starts_with_base else len(merged), subject.base)
                job = cls(
                    place=place,
                    model=merged[0],
                    base=inputs.checkpoints[model.name] if merge.needs_base else None,
                    method=merge.resolve(spec.top if spec.target else len(merged)).identity(),
                    settings=inputs.options[cls.name],
                    merge=merge,
                    others=tuple(merged[1:]),
                    data=_measured_on(inputs, entry, domain) if merge.data else (),
                    **_selection(inputs, entry, domain),
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
    """Yield the model whose place the merged one takes, and the models that are merged.

    A model that was adapted to the text of a task is merged with those that were, and with those of the domain.
    """
    first, *rest = [list(adapted_models(inputs, method, model, domain)) for method in entry.methods]
    if entry.spec.target:
        experts = [
            one
            for method, other in _experts(inputs, entry, domain)
            for one in adapted_models(inputs, method, model, other)
        ]
        if tasks := [one.place.adapted_for for one in (*first, *experts) if one.place.adapted_for]:
            raise UserError(
                f"study: merges: '{entry.spec.label}' selects among models of domains, and one was adapted to the "
                f"text of the task {tasks[0]}; name other methods."
            )
        for subject in first:
            yield subject, [one.model for one in experts if one.place.adapt_seed == subject.place.adapt_seed]
        return
    if entry.spec.merges_seeds:
        for task in dict.fromkeys(subject.place.adapted_for for subject in first):
            every = [subject for subject in first if subject.place.adapted_for == task]
            place = replace(every[0].place, adapt_seed=None)
            yield replace(every[0], place=place, seeds=inputs.config.seeds), [one.model for one in every]
        return
    for subject in first:
        place = subject.place
        merged: list[Any] = [subject.model]
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


def _experts(inputs: StudyInputs, entry: PlannedMerge, domain: DomainSpec) -> Iterator[tuple[MethodSpec, DomainSpec]]:
    """Yield the methods with the other domains, in the order of the models."""
    yield from ((method, one) for method in entry.methods for one in inputs.config.domains if one.name != domain.name)


def _selection(inputs: StudyInputs, entry: PlannedMerge, domain: DomainSpec) -> dict[str, Any]:
    """Return the fields of a job that selects among the models of other domains."""
    spec, corpora = entry.spec, tuple[Corpus, ...]()
    if not spec.target:
        return {}
    if spec.rank == "similarity":
        corpora = tuple(inputs.corpus(one.name, method.label) for method, one in _experts(inputs, entry, domain))
    target = inputs.corpus(domain.name, entry.methods[0].label)
    return {"target": target, "select": {"top": spec.top, "rank": spec.rank}, "corpora": corpora}


def _measured_on(inputs: StudyInputs, entry: PlannedMerge, domain: DomainSpec) -> tuple[Any, ...]:
    """Return text that the study does not measure on: held-out text for all models, or a text for each.

    Of the latter, adapted models get the text of the domain, and the base model general text.
    """
    if entry.merge.data == "one":
        rest = unmeasured_part(inputs.held_out[domain.name], inputs.heldout[domain.name])
        if rest is None:
            raise UserError(
                f"study: merges: '{entry.spec.label}' selects models by held-out text of {domain.name} that the study "
                "does not measure losses on; give more 'heldout' text than 'evaluate.documents'."
            )
        return (rest,)
    if inputs.unmeasured is None:
        raise UserError(
            f"study: merges: '{entry.spec.label}' measures the base model on general text that the study does not "
            "measure losses on; give more of it."
        )
    return (*(inputs.corpus(domain.name, method.label) for method in entry.methods), inputs.unmeasured)
