"""The study file: which models, methods, domains, tasks and seeds are compared, and with which settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from acclimate.base.bounds import MAX_SEED
from acclimate.base.errors import UserError, did_you_mean, shorten, unknown_name_error
from acclimate.base.options import explain_value, propose_part
from acclimate.base.registry import split_entry
from acclimate.base.settings_file import check_study_file, read_settings
from acclimate.data.reading import reading_names
from acclimate.results.study import JOB_KINDS
from acclimate.study import paths
from acclimate.study.paths import locate_model, locate_settings, locate_source, locate_text
from acclimate.study.sections import MethodSearch, SearchSettings, SectionEntry
from acclimate.study.settings import (
    UNADAPTED,
    AdaptSettings,
    EvaluateSettings,
    FinetuneSettings,
    Label,
    OperationSpec,
    Seeds,
    ShortForm,
    Sources,
    Strict,
    TaskSpec,
    as_list,
    as_sources,
    check_plain_values,
    distinct,
)


class ModelSpec(Strict, ShortForm):
    """A base model: a path, or ``{name, path}``."""

    name: Label = ""
    path: str

    @model_validator(mode="after")
    def _named(self) -> ModelSpec:
        self.name = self.name or Path(self.path).name
        return self


def _adapt_value(name: str, value: Any) -> Any:
    try:
        return AdaptSettings.check({name: value}).get(name, value)
    except ValueError as error:
        raise ValueError(f"search.adapt: {error}") from error


class MethodSpec(OperationSpec, ShortForm):
    """A method of adaptation, or ``{name, label?, on?, adapt?, scored?, search?, **parameters}``.

    All other keys are parameters of the method. The name may hold parameters too, as ``dga contrast_weight=0.5``.

    Attributes:
        label: Row label in the tables.
        on: ``"task"`` adapts to the text of each task separately, ``"domain"`` to the text of the domain. None uses
            the default of the method.
        adapt: Settings of adaptation for this method, which override those of the study.
        select: Selection from the text of the domain, instead of that of the domain; ``random`` is its control.
        transform: Transforms, instead of those of the domain.
        scored: ``false`` if the models are only merged with others, and are no rows of the study.
        search: Values to try for parameters of the method and, under ``adapt``, for settings of its adaptation.
    """

    model_config = ConfigDict(extra="allow")
    short: ClassVar[str] = "name"
    name: str
    label: Label = ""
    on: Literal["domain", "task"] | None = None
    adapt: Annotated[dict[str, Any], AfterValidator(AdaptSettings.check)] = Field(default_factory=dict)
    scored: Literal[False] | None = None
    search: MethodSearch | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the method, without defaults."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _yaml_on(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and True in value:  # YAML reads a bare "on" as true
            return {"on" if key is True else key: entry for key, entry in value.items()}
        return value

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        given, rest = (value["name"], value) if isinstance(value, Mapping) and "name" in value else (value, {})
        if isinstance(given, Mapping) and len(given) != 1:
            return value
        try:
            name, settings = split_entry(given, "method")
        except UserError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        if not isinstance(settings, Mapping | None):
            raise ValueError(f"method '{name}' expects named parameters, not {shorten(settings)}")
        return {**rest, "name": name, **(settings or {})}

    @model_validator(mode="after")
    def _labelled(self) -> MethodSpec:
        changes = self.adapt or self.on or self.describe_operations() or (self.search and self.search.adapt)
        if self.name == UNADAPTED and changes:
            raise ValueError(f"'{UNADAPTED}' is the base model and is not adapted; remove its settings")
        changed = {**self.parameters, **({"on": self.on} if self.on else {}), **self.adapt}
        changed |= self.describe_operations()
        shown = ", ".join(f"{key}={value}" for key, value in changed.items())
        self.label = self.label or (f"{self.name} ({shown})" if shown else self.name)
        return self


class SampleSpec(Strict):
    """An example of a task, shown in the report."""

    text: str
    label: str | None = None


class DomainSpec(OperationSpec, Strict):
    """A domain: text to adapt to, held-out text, and end tasks.

    Attributes:
        corpus: The text, or ``{from, select?, transform?, target?}``.
        target: Text that operations compare the documents with; by default that of the train splits of the tasks.
    """

    name: Annotated[Label, Field(min_length=1)]
    corpus: Annotated[Sources, BeforeValidator(as_sources), Field(min_length=1)]
    target: Annotated[Sources | None, BeforeValidator(as_sources)] = None
    heldout: Annotated[Sources | None, BeforeValidator(as_sources)] = None
    tasks: list[TaskSpec] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _take_selection(cls, value: Any) -> Any:
        corpus = value.get("corpus") if isinstance(value, Mapping) else None
        if not isinstance(corpus, Mapping) or "from" not in corpus:
            return value
        if unknown := corpus.keys() - {"from", "select", "transform", "target"}:
            raise ValueError(f"corpus: unknown key '{min(unknown)}'; known here: from, select, transform, target")
        given = {key: entry for key, entry in corpus.items() if key != "from"}
        return {**value, "corpus": corpus["from"], **given}


class StudyConfig(Strict):
    """A study: a grid of models, methods, domains with their tasks, and seeds.

    Attributes:
        name: Short name; by default that of the file.
        title: Title of the report; by default the models and the domains.
        notes: Paragraphs at the top of the report.
        samples: Examples of a task shown in the report, each with a ``text`` and optionally a ``label``.
        models: Base models.
        methods: Methods of adaptation; ``none`` is the base model.
        domains: Domains, each with text and tasks.
        other_tasks: End tasks of other domains, for measuring forgetting: every adapted model is fine-tuned on them as
            well.
        general: Sources of general text, for measuring forgetting; None skips the measurement.
        leakage: What to do with documents that contain dev or test texts of a task: ``"report"`` counts them,
            ``"remove"`` excludes them from adaptation, ``"off"`` does not search for them.
        adapt: Settings of adaptation.
        adapt_seeds: Seeds of adaptation, as ``seeds``. The i-th seed of fine-tuning starts from the model of
            adaptation seed i modulo their number. By default as many as ``seeds``, at most three, counted from
            ``adapt.seed``. With a single one no comparison gets a verdict.
        finetune: Settings of fine-tuning for all tasks.
        seeds: Seeds of fine-tuning: a list, or a number n for the seeds 0 to n - 1.
        evaluate: Settings of the language-model loss and of drift.
        search: How settings are searched on the dev splits, and values to try for the whole study.
        baseline: Label of the row that the others are compared with.
        keep: ``best`` keeps fine-tuned models: see :mod:`acclimate.study.keeping`.
        capabilities: Names of measurements by group, which a sheet of the report compares; None for no sheet.
        sections: Sections that configure kinds of jobs, by key. In the file each is a key at the top level.
    """

    name: Label = "study"
    title: str = ""
    notes: list[str] = Field(default_factory=list)
    samples: list[SampleSpec] = Field(default_factory=list)
    models: list[ModelSpec] = Field(min_length=1)
    methods: list[MethodSpec] = Field(min_length=1)
    domains: list[DomainSpec] = Field(min_length=1)
    other_tasks: list[TaskSpec] = Field(default_factory=list)
    general: Annotated[Sources | None, BeforeValidator(as_sources)] = None
    leakage: Annotated[Literal["report", "remove", "off"], BeforeValidator(lambda v: "off" if v is False else v)] = (
        "report"  # YAML reads a bare off as false
    )
    adapt: AdaptSettings = AdaptSettings()
    adapt_seeds: Seeds = []
    finetune: FinetuneSettings = FinetuneSettings()
    seeds: Seeds = [0, 1, 2, 3, 4]
    evaluate: EvaluateSettings = EvaluateSettings()
    search: Annotated[SearchSettings | None, BeforeValidator(lambda v: None if v is False else v)] = None
    baseline: str = "none"
    keep: Literal["best"] | None = None
    capabilities: dict[Label, Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]] | None = None
    sections: dict[str, list[Any]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("a study is a table of keys such as models, methods and domains")
        check_plain_values(value)
        value = {key: entry for key, entry in value.items() if key != "adapt_seeds" or entry is not None}
        for key in ("models", "methods"):
            if isinstance(value.get(key), str | Path):
                value[key] = [value[key]]
        given = value.get("sections") or {}
        if not isinstance(given, Mapping):
            raise ValueError(f"sections: give sections by name, not {given!r}")
        value["sections"] = {
            key: _read_section(key, entry, value.pop(key) if key in value else given[key])
            for key, entry in section_types().items()
            if key in value or key in given
        }
        return value

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        distinct("models", [model.name for model in self.models], "give one a different 'name'")
        rows = self.row_labels
        distinct(" and ".join(("methods", *self.sections)), rows, "give one a different 'label'")
        distinct("domains", [domain.name for domain in self.domains], "give one a different 'name'")
        distinct("seeds", [str(seed) for seed in self.seeds], "list each seed once")
        distinct("adapt_seeds", [str(seed) for seed in self.adapt_seeds], "list each seed once")
        first, count = self.adapt.seed, min(len(self.seeds), 3)
        self.adapt_seeds = self.adapt_seeds or [(first + number) % (MAX_SEED + 1) for number in range(count)]
        for domain in self.domains:
            distinct(f"tasks of {domain.name}", [task.name for task in domain.tasks], "give one a different 'name'")
        distinct("other_tasks", [task.name for task in self.other_tasks], "give one a different 'name'")
        if any(task.search for task in self.other_tasks):
            raise ValueError("other_tasks: settings cannot be searched on tasks of other domains; remove 'search'")
        if (named := self.evaluate.needs_general()) and not self.general:
            raise ValueError(f"evaluate.{named} measures on general text: give 'general', or remove it")
        tasks = [task for domain in self.domains for task in domain.tasks]
        searchable: list[Any] = [*self.methods, *self.entries, *tasks]
        if self.search is None and any(getattr(entry, "search", None) for entry in searchable):
            self.search = SearchSettings()
        if self.search:
            scored = {*self.seeds}
            if any(entry.trains_with_adapt_seeds for entry in self.entries):
                scored.update(self.adapt_seeds)
            self.search.reserve_seeds(scored, len(self.seeds))
        searches: list[Any] = [self.search, *(method.search for method in self.methods)]
        for grid in (search.adapt for search in searches if search):
            grid.update({name: [_adapt_value(name, value) for value in values] for name, values in grid.items()})
        labels = [method.label for method in self.methods]
        if self.baseline not in rows:
            if "baseline" in self.model_fields_set:
                raise unknown_name_error("baseline", self.baseline, rows)
            self.baseline = labels[0]
        return self

    @model_validator(mode="after")
    def _check_quick(self) -> StudyConfig:
        has_tasks = any(domain.tasks for domain in self.domains)
        if self.evaluate.quick and (self.search or not has_tasks):
            why = "there is nothing to search settings of: remove 'search'" if self.search else "there is no task"
            raise ValueError(f"evaluate.quick scores linear models instead of fine-tuning, so {why}")
        return self

    @property
    def entries(self) -> list[SectionEntry]:
        """The entries of the sections of all kinds of jobs."""
        return [entry for entries in self.sections.values() for entry in entries]

    @property
    def domain_methods(self) -> list[MethodSpec]:
        """The methods that make a model for each domain."""
        return [one for one in self.methods if not any(entry.replaces_domains(one.label) for entry in self.entries)]

    @property
    def row_labels(self) -> list[str]:
        """Row labels of the score tables, in order."""
        return [*(method.label for method in self.methods), *(entry.label for entry in self.entries if entry.label)]

    def finetune_settings(self, task: TaskSpec) -> dict[str, Any]:
        """Return the explicit settings of fine-tuning for a task; those of the task override those of the study."""
        given = {**self.finetune.given(), **task.given()}
        elsewhere = {"metric", "first", *reading_names()}
        return {name: value for name, value in given.items() if name not in elsewhere}

    def search_lists(self, task: TaskSpec, methods: Sequence[MethodSpec]) -> dict[tuple[str, str], list[Any]]:
        """Return the values to try for methods on a task.

        Values given for the task or a method override those of the study.

        Returns:
            Lists by section (``"finetune"``, ``"adapt"``, ``"parameters"``) and name; empty without a search.
        """
        if self.search is None:
            return {}
        tuning = self.search.finetune | (task.search or {})
        found = {("finetune", name): values for name, values in tuning.items()}
        for method in methods:
            if method.name != UNADAPTED:
                adapt = self.search.adapt | (method.search.adapt if method.search else {})
                found |= {("adapt", name): values for name, values in adapt.items()}
                parameters = method.search.parameters if method.search else {}
                found |= {("parameters", name): values for name, values in parameters.items()}
        return found

    @property
    def searched_tasks(self) -> list[tuple[DomainSpec, TaskSpec]]:
        """Each task on which settings are searched, with its domain."""
        return [
            (domain, task)
            for domain in self.domains
            for task in domain.tasks
            if self.search_lists(task, self.methods)
            or (self.search and any(entry.is_searched(self.search, domain.name) for entry in self.entries))
        ]

    @classmethod
    def load(cls, path: str | Path) -> StudyConfig:
        """Read a study file (``.yaml``, ``.yml`` or ``.toml``); relative paths are resolved against its folder.

        Raises:
            UserError: If the file is missing, cannot be parsed, or is not a valid study.
        """
        path = Path(os.path.expanduser(path))
        return cls.of(read_study_file(path), where=str(path)).relative_to(path.resolve().parent)

    @classmethod
    def of(cls, value: Any, where: str = "study") -> StudyConfig:
        """Create a study from plain values.

        Args:
            value: Values as in a study file.
            where: Label of the source, for error messages.

        Raises:
            UserError: If a key or value is invalid; the message names the key and suggests a correction for a typo.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise UserError(f"{where}: {' '.join(_explain(error, cls).split())}") from error
        except UnicodeEncodeError as error:  # pydantic cannot write such a value into its message
            wrong = ascii(error.object[error.start : error.end])
            raise UserError(f"{where}: {wrong} in a value is not a character of any text. Remove it.") from error

    def relative_to(self, folder: Path) -> StudyConfig:
        """Return a copy with relative paths resolved against ``folder``; names on the Hub are unchanged."""
        copy = self.model_copy(deep=True)
        for model in copy.models:
            model.path = locate_model(model.path, folder)
        for domain in copy.domains:
            domain.corpus = [locate_source(source, folder) for source in domain.corpus]
            domain.heldout = domain.heldout and [locate_source(source, folder) for source in domain.heldout]
            domain.target = domain.target and [locate_source(source, folder) for source in domain.target]
        paths.locate_operations((*copy.domains, *copy.methods), folder)
        for task in (*copy.other_tasks, *(task for domain in copy.domains for task in domain.tasks)):
            task.path = locate_text(task.path, folder)
            task.first = task.first and locate_text(task.first, folder)
            task.passages = task.passages and locate_text(str(task.passages), folder)
        for entry in copy.entries:
            entry.resolve_paths(lambda path: locate_model(path, folder))
            entry.resolve_sources(lambda source: locate_source(source, folder))
        copy.general = copy.general and [locate_source(source, folder) for source in copy.general]
        searches: list[Any] = [copy.search, *(method.search for method in copy.methods)]
        for method in copy.methods:
            for given in (method.model_extra, method.search and method.search.model_extra):
                locate_settings(given, paths.files_of(method.name), folder)
        adapt: Any = copy.adapt
        located = paths.locate_mixture(adapt.given(), folder) | paths.locate_parts(adapt.given(), folder)
        copy.adapt = adapt.model_copy(update=located)
        for method in copy.methods:
            located = paths.locate_parts(method.adapt, folder, f"methods.{method.name}.adapt")
            method.adapt |= paths.locate_mixture(method.adapt, folder) | located
        for search in filter(None, searches):
            search.adapt |= paths.locate_parts(search.adapt, folder, "search.adapt")
        return copy

    def resolved(self) -> dict[str, Any]:
        """Return the study as plain values, defaults included."""
        values = self.model_dump(mode="json", exclude_none=True, exclude={"notes", "samples"})
        return values.pop("sections") | values


def read_study_file(path: str | Path) -> Any:
    """Return the plain values of a study file; the default name of the study is that of the file.

    Raises:
        UserError: If the file is missing or cannot be parsed.
    """
    path = check_study_file(path)
    value = read_settings(path, "study file")
    return {"name": path.stem, **value} if isinstance(value, dict) else value


def section_types() -> dict[str, type[SectionEntry]]:
    """Return the entry types of the sections that configure kinds of jobs, by key."""
    kinds = (JOB_KINDS.lookup(name) for name in JOB_KINDS.names())
    return {kind.section[0]: kind.section[1] for kind in kinds if kind.section}


def _read_section(key: str, entry: type[SectionEntry], value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [] if value is None or value is False else [value]
    try:
        return TypeAdapter(list[entry]).validate_python(values)  # type: ignore[valid-type]
    except ValidationError as error:
        raise ValueError(_explain(error, entry, key).removesuffix(".")) from error


def _explain(error: ValidationError, root: type[BaseModel], where: str = "") -> str:
    """Describe all unknown keys, or else the first validation error, with the paths of the keys.

    Args:
        error: The error of a ``root`` model, or of a list of them.
        root: The model.
        where: Path of the list; empty for a single model.
    """
    # A misspelled key also causes a "missing" error; the unknown key is the one to report.
    errors: list[Any] = error.errors(include_url=False)
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    return " ".join(dict.fromkeys(_explain_one(one, root, where) for one in unknown or errors[:1]))


def _explain_one(first: Mapping[str, Any], root: type[BaseModel], where: str) -> str:
    for part in (part for part in first["loc"] if "[" not in str(part)):  # a type among several, as list[int]
        where += f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part}"
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        known = set(_fields_at(root, first["loc"][:-1]))
        if len(first["loc"]) == 1:
            known = known - {"sections"} | section_types().keys()
        if hint := propose_part(name, known):
            return f"'{where}' is no key.{hint}"
        return f"unknown key '{where}'.{did_you_mean(name, known)} Known here: {', '.join(sorted(known))}."
    if first["type"] == "missing":
        return f"the key '{where}' is missing."
    message = explain_value(first)
    colon = ":" if first["type"] == "value_error" else ""
    return f"'{where}'{colon} {message}." if where else f"{message}."


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the keys of the section at ``location``."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = find_section(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as ``list[TaskSpec]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := find_section(inner))), None)
