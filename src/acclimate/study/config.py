"""The study file: which models, methods, domains, tasks and seeds are compared, and with what settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from acclimate.errors import UserError, unknown_name_error
from acclimate.files import read_settings
from acclimate.masking import file_parameters
from acclimate.models.checkpoints import is_written_as_path
from acclimate.study.explain import explain
from acclimate.study.grid import MethodSearch, SearchSettings
from acclimate.study.lessons import DistillSpec
from acclimate.study.settings import (
    UNADAPTED,
    AdaptSettings,
    EvaluateSettings,
    FinetuneSettings,
    Paths,
    Seed,
    Strict,
    TaskSpec,
    distinct,
    seed_list,
    several,
)


class ModelSpec(Strict):
    """A model to start from: a path, or ``{name, path}``."""

    name: str = ""
    path: str

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _named(self) -> ModelSpec:
        self.name = self.name or Path(self.path).name
        return self


def _adapt_value(name: str, value: Any) -> Any:
    """Return a value to try of an option of ``adapt``, converted to its type."""
    try:
        return AdaptSettings.check({name: value}).get(name, value)
    except ValueError as error:
        raise ValueError(f"search.adapt: {error}") from error


class MethodSpec(BaseModel):
    """A method of adaptation: its name, or ``{name, label?, on?, adapt?, **parameters}``.

    Keys other than these are parameters of the method; the method itself says which it knows. ``adapt`` overrides
    settings of the study's ``adapt`` section for this method alone. ``on: task`` adapts to the text of each task, once
    for each, and ``on: domain`` to that of the domain; by default the method says which. ``search`` has values of its
    parameters to try and, under ``adapt``, of settings of its adaptation.
    """

    model_config = ConfigDict(extra="allow")
    name: str
    label: str = ""
    on: Literal["domain", "task"] | None = None
    adapt: Annotated[dict[str, Any], AfterValidator(AdaptSettings.check)] = Field(default_factory=dict)
    search: MethodSearch | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters given for the method itself."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and True in value:  # YAML reads a bare "on" as true
            value = {"on" if key is True else key: entry for key, entry in value.items()}
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _labelled(self) -> MethodSpec:
        if self.name == UNADAPTED and (self.adapt or self.on or (self.search and self.search.adapt)):
            raise ValueError(f"'{UNADAPTED}' is the model as it came and adapts to nothing; leave its settings out")
        changed = {**self.parameters, **({"on": self.on} if self.on else {}), **self.adapt}
        shown = ", ".join(f"{key}={value}" for key, value in changed.items())
        self.label = self.label or (f"{self.name} ({shown})" if shown else self.name)
        return self


class SampleSpec(Strict):
    """An example of a task that the report shows."""

    text: str
    label: str | None = None


class DomainSpec(Strict):
    """A domain: text to adapt to, text held out of it, and end tasks."""

    name: str
    corpus: Annotated[Paths, BeforeValidator(several), Field(min_length=1)]
    heldout: Annotated[Paths | None, BeforeValidator(several)] = None
    tasks: list[TaskSpec] = Field(default_factory=list)


class StudyConfig(Strict):
    """A study: models x methods x domains and their tasks x seeds.

    Attributes:
        name: Short name, also the default title of the report.
        title: Title of the report.
        notes: Paragraphs shown at the head of the report.
        samples: Examples of a task shown in the report, each with ``text`` and perhaps a ``label``.
        models: Models to start from.
        methods: Methods of adaptation; ``none`` is the model as it is.
        domains: Domains, each with text and tasks.
        other_tasks: End tasks of other domains: every adapted model learns them, too, to see what was lost on them.
        general: Text, or several sources of it, on which forgetting is measured. None: it is not measured.
        leakage: Whether documents that hold dev or test texts of a task are counted (``"report"``), left out before
            adaptation (``"remove"``), or not looked for (``"off"``).
        adapt: Settings of adaptation.
        adapt_seeds: None adapts once per method and shares the result among all seeds of fine-tuning. With a list,
            the i-th seed of fine-tuning starts from adaptation seed i modulo its length.
        finetune: Settings of fine-tuning for all tasks.
        seeds: Seeds of fine-tuning: a number n for 0 to n - 1, or a list.
        evaluate: Settings of the measured masked-LM loss.
        distill: Rows whose students learn each task from a teacher.
        search: What is chosen on the dev splits before anything is tested.
        baseline: Label of the method, or row of distillation, with which the others are compared.
    """

    name: str = "study"
    title: str = ""
    notes: list[str] = Field(default_factory=list)
    samples: list[SampleSpec] = Field(default_factory=list)
    models: list[ModelSpec] = Field(min_length=1)
    methods: list[MethodSpec] = Field(min_length=1)
    domains: list[DomainSpec] = Field(min_length=1)
    other_tasks: list[TaskSpec] = Field(default_factory=list)
    general: Annotated[Paths | None, BeforeValidator(several)] = None
    leakage: Annotated[Literal["report", "remove", "off"], BeforeValidator(lambda v: "off" if v is False else v)] = (
        "report"  # YAML reads a bare off as false
    )
    adapt: AdaptSettings = AdaptSettings()
    adapt_seeds: list[Seed] | None = Field(default=None, min_length=1)
    finetune: FinetuneSettings = FinetuneSettings()
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0, 1, 2, 3, 4]
    evaluate: EvaluateSettings = EvaluateSettings()
    distill: list[DistillSpec] = Field(default_factory=list)
    search: SearchSettings | None = None
    baseline: str = "none"

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("a study is a table of keys such as models, methods and domains")
        value = dict(value)
        for key in ("models", "methods"):
            if isinstance(value.get(key), str | Path):
                value[key] = [value[key]]
        seeds = value.get("seeds")
        if isinstance(seeds, str | float):
            raise ValueError(f"seeds: give a number of them, or a list of seeds, not {seeds!r}")
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            value["seeds"] = seed_list(seeds)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        distinct("models", [model.name for model in self.models], "give one a different 'name'")
        rows = [row.label for row in self.rows]
        distinct("methods and distill" if self.distill else "methods", rows, "give one a different 'label'")
        distinct("domains", [domain.name for domain in self.domains], "give one a different 'name'")
        distinct("seeds", [str(seed) for seed in self.seeds], "list each seed once")
        distinct("adapt_seeds", [str(seed) for seed in self.adapt_seeds or []], "list each seed once")
        for domain in self.domains:
            distinct(f"tasks of {domain.name}", [task.name for task in domain.tasks], "give one a different 'name'")
        distinct("other_tasks", [task.name for task in self.other_tasks], "give one a different 'name'")
        if any(task.search for task in self.other_tasks):
            raise ValueError("other_tasks: nothing is searched on tasks of other domains; leave 'search' out")
        if self.evaluate.moved and not self.general:
            raise ValueError("evaluate.moved measures on general text: give 'general', or leave it out")
        tasks = [task for domain in self.domains for task in domain.tasks]
        if self.search is None and any(row.search for row in (*self.rows, *tasks)):
            self.search = SearchSettings()
        searches: list[Any] = [self.search, *(method.search for method in self.methods)]
        for grid in (search.adapt for search in searches if search):
            grid.update({name: [_adapt_value(name, value) for value in values] for name, values in grid.items()})
        labels = [method.label for method in self.methods]
        if self.baseline not in rows:
            if "baseline" in self.model_fields_set:
                raise unknown_name_error("baseline", self.baseline, rows)
            self.baseline = labels[0]
        return self

    @property
    def rows(self) -> list[MethodSpec | DistillSpec]:
        """What the tables of scores have a row for."""
        return [*self.methods, *self.distill]

    @classmethod
    def load(cls, path: str | Path) -> StudyConfig:
        """Read a study file (``.yaml``, ``.yml`` or ``.toml``); its relative paths are relative to the file.

        Raises:
            UserError: If the file is missing, cannot be parsed, or says something that makes no study.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"No study file at '{path}'. Give the path of a .yaml or .toml file.")
        value = read_settings(path, "study file")
        if isinstance(value, dict):
            value.setdefault("name", path.stem)
        return cls.of(value, where=str(path)).relative_to(path.resolve().parent)

    @classmethod
    def of(cls, value: Any, where: str = "study") -> StudyConfig:
        """Make a study from plain values, with one readable line for what is wrong.

        Raises:
            UserError: Naming the key and, for a typo, the key that was meant.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise UserError(f"{where}: {' '.join(explain(error, cls).split())}") from error

    def relative_to(self, folder: Path) -> StudyConfig:
        """Return a copy whose relative paths start at ``folder``; names of the hub are left alone."""
        copy = self.model_copy(deep=True)
        for model in copy.models:
            model.path = _model(model.path, folder)
        for domain in copy.domains:
            domain.corpus = [_read(source, folder) for source in domain.corpus]
            domain.heldout = domain.heldout and [_read(source, folder) for source in domain.heldout]
        for task in (*copy.other_tasks, *(task for domain in copy.domains for task in domain.tasks)):
            task.path = _inside(task.path, folder)
            task.first = task.first and _inside(task.first, folder)
        for row in copy.distill:
            row.teacher.path = row.teacher.path and _model(row.teacher.path, folder)
        copy.general = copy.general and [_read(source, folder) for source in copy.general]
        searches: list[Any] = [copy.search, *(method.search for method in copy.methods)]
        for method in copy.methods:
            for given in (method.model_extra, method.search and method.search.model_extra):
                _locate(given, _files_of(method.name), folder)
        options = [copy.adapt.given(), *(method.adapt for method in copy.methods)]
        for given in (*options, *(search.adapt for search in searches if search)):
            settings = (given or {}).get("masking_settings")
            for one in settings if isinstance(settings, list) else [settings]:
                _locate(one, file_parameters(), folder)
        return copy

    def resolved(self) -> dict[str, Any]:
        """Return the study as plain values, with every default that the study knows filled in."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"notes", "samples"})


def _locate(given: Any, names: Collection[str], folder: Path) -> None:
    """Resolve the files among some settings, or among lists of values to try; in place."""
    if not isinstance(given, dict):
        return
    for name in set(names) & given.keys():
        value = given[name]
        several = isinstance(value, list)
        given[name] = [_located(str(one), folder) for one in value] if several else _located(str(value), folder)


def _inside(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).resolve())


def _model(name: str, folder: Path) -> str:
    """Resolve a model against ``folder`` if it is there or written as a path; names of the hub may have a dot."""
    return _inside(name, folder) if is_written_as_path(name) or (folder / name).exists() else name


def _read(source: str, folder: Path) -> str:
    """Resolve a source of text against ``folder``, also if it is not there, unless it is a data set of the hub."""
    return source if not source or source.startswith("hf:") else _inside(source, folder)


def _located(source: str, folder: Path) -> str:
    """Resolve ``source`` against ``folder`` if it is a path there; what is not there may be a name of the hub."""
    if not source:
        return source
    path = Path(source).expanduser()
    if path.is_absolute():
        return str(path)
    here = folder / path
    looks_like_path = source.startswith(".") or path.suffix != "" or any(mark in source for mark in "*?[")
    return str(here.resolve()) if here.exists() or looks_like_path else source


def _files_of(method: str) -> set[str]:
    """Return the parameters of a method that may be paths of files; of an unknown one, none: that is said later."""
    from acclimate.methods import lookup, names

    return set(lookup(method).files) if method in names() else set()
