"""From a study to its cells: what has to be adapted, measured and fine-tuned, in the order of work."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from acclimate.corpus.documents import subsample_documents
from acclimate.errors import UserError, unknown_name_error
from acclimate.study.cells import HEAD, Cell
from acclimate.study.config import DomainSpec, ModelSpec, StudyConfig, TaskSpec
from acclimate.study.distilling import add_distillations
from acclimate.study.finetuning import task_settings
from acclimate.study.identity import model_fingerprint, texts_identity
from acclimate.study.kept import OTHER
from acclimate.study.layout import lay_out
from acclimate.study.leaks import remove_leaks
from acclimate.study.parts import Parts
from acclimate.study.reading import Reading, check_readings, read_methods
from acclimate.study.rounds import check_search, searched
from acclimate.study.settings import UNADAPTED

HELDOUT_SHARE = 0.02
SPLIT_SEED = 0
WARM_UP_SPLIT = 0.5


@dataclass
class Text:
    """Documents on which masked-LM loss is measured."""

    texts: list[str]
    identity: str


@dataclass(frozen=True)
class Base:
    """The model that all methods start from: its identity, and the cell that makes it if it had no head."""

    identity: str
    needs: str | None = None

    @property
    def source(self) -> tuple[str, str | None]:
        """Both, as cells of fine-tuning take them."""
        return self.identity, self.needs


@dataclass
class Plan:
    """The cells of a study, and the data that they read.

    Attributes:
        cells: In the order of work: an adaptation comes before what needs it. Each key occurs once.
        entries: Every place of the study that a cell fills; several places may share one cell.
        models: Path of each model, by name.
        corpora: Text to adapt to, by domain; ``"general"`` is what a missing head is warmed up on.
        texts: Documents to measure on, by ``"general"`` or name of the domain.
        tasks: Loaded tasks, by (domain, task name); those of other domains have "" for it.
        firsts: What is learnt before some of them, by the same.
        metrics: What each of them is judged by.
        adapt: Keywords for ``adapt``, its corpus among them, by key of the cell.
        finetune: Keywords for ``finetune`` by key of the cell.
        distill: Keywords of the cells of distillation and of their teachers, by key.
        settings: Parameters of each method, defaults included, by label.
        readings: What each method reads, by label.
        task_texts: Text of the train split of tasks, by (domain, task name), where a method reads it.
        leakage: What each corpus holds of the texts that tasks are judged on, by domain, where that was looked for.
        in_train: What train splits hold of the texts that the same models are judged on, where that was looked for.
        unlooked: Texts in which that was wanted and not looked for.
        limits: Rows that are kept of splits, and that there were, where the study limits a task.
    """

    cells: dict[str, Cell] = field(default_factory=dict)
    entries: list[Cell] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    corpora: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    tasks: dict[tuple[str, str], Any] = field(default_factory=dict)
    firsts: dict[tuple[str, str], Any] = field(default_factory=dict)
    metrics: dict[tuple[str, str], str] = field(default_factory=dict)
    adapt: dict[str, dict[str, Any]] = field(default_factory=dict)
    finetune: dict[str, dict[str, Any]] = field(default_factory=dict)
    distill: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    task_texts: dict[tuple[str, str], Any] = field(default_factory=dict)
    leakage: dict[str, dict[str, Any]] = field(default_factory=dict)
    in_train: dict[str, dict[str, Any]] = field(default_factory=dict)
    unlooked: list[str] = field(default_factory=list)
    limits: dict[tuple[str, str], dict[str, tuple[int, int]]] = field(default_factory=dict)

    def add(self, cell: Cell) -> str:
        """Note a cell at its place; return its key."""
        self.entries.append(cell)
        self.cells.setdefault(cell.key, cell)
        return cell.key

    def copied(self) -> Plan:
        """Return a plan to which cells can be added without changing this one."""
        return Plan(**{entry.name: copy(getattr(self, entry.name)) for entry in fields(self)})


@dataclass(frozen=True)
class Ground:
    """What a study names, read and checked; cells are laid out on it, once or, in a search, many times.

    Attributes:
        config: The study.
        parts: Its parts.
        plan: Texts, tasks, metrics and methods, without cells.
        identities: Hashes of the models, by name.
        headless: Those without a masked-LM head.
        warm_up: What such a head is warmed up on.
        adapt_defaults: Of ``adapt``.
        finetune_defaults: Of ``finetune``.
    """

    config: StudyConfig
    parts: Parts
    plan: Plan
    identities: dict[str, str]
    headless: set[str]
    warm_up: Any
    adapt_defaults: dict[str, Any] | None
    finetune_defaults: dict[str, Any] | None

    def fresh(self, trial: bool = False) -> Plan:
        """Return a plan without cells; as a ``trial`` its tasks have no test split, but dev in its place."""
        plan = self.plan.copied()
        if trial:
            plan.tasks |= self.trial_tasks
        return plan

    @cached_property
    def trial_tasks(self) -> dict[tuple[str, str], Any]:
        """The tasks on which something is searched, without their test splits."""
        places = ((domain.name, task.name) for domain, task in searched(self.config))
        return {place: self.parts.held_back(self.plan.tasks[place]) for place in places}

    def lay_out(self, plan: Plan, config: StudyConfig) -> None:
        """Add the cells of all models in all domains to a plan; ``config`` may be a part of the study."""
        for model in config.models:
            base = Base(self.identities[model.name])
            if model.name in self.headless:
                base = _head(plan, config, model, base.identity, self.warm_up, self.adapt_defaults or {})
            for domain in config.domains:
                lay_out(plan, config, model, domain, base, self.adapt_defaults or {}, self.finetune_defaults or {})


def make_plan(config: StudyConfig, parts: Parts, progress: bool = False) -> Plan:
    """Read what the study names, check all of it, and lay out the cells; what is to be searched stays as it is said.

    Raises:
        UserError: If a model, method, keyword, text or task does not exist or cannot be used.
    """
    ground = survey(config, parts, progress)
    plan = ground.fresh()
    ground.lay_out(plan, config)
    add_distillations(plan, config, parts, ground.identities)
    return plan


def survey(config: StudyConfig, parts: Parts, progress: bool = False) -> Ground:
    """Read what the study names and check all of it.

    Nothing is trained here, so that a wrong path or name is found before any time is spent.

    Raises:
        UserError: If a model, method, keyword, text or task does not exist or cannot be used.
    """
    plan = Plan(models={model.name: model.path for model in config.models})
    defaults = parts.adapt_defaults()
    read_methods(plan, config, parts, defaults)
    finetune_defaults = parts.finetune_defaults()
    column = str(config.adapt.given().get("text_column", "text"))
    identities = {model.name: model_fingerprint(model.path) for model in config.models}
    headless = {model.name for model in config.models if not _has_head(model, config, parts, defaults)}
    for domain in config.domains:
        _read_domain(plan, domain, config, parts, column)
    check_readings(plan, config)
    for task in config.other_tasks:
        _read_task(plan, OTHER, task, config, parts)
    if config.leakage == "remove":
        remove_leaks(plan, config, parts, progress)
    warm_up = plan.corpora[config.domains[0].name]
    if config.general:
        general = parts.corpus(config.general, column)
        if headless:  # what a head is warmed up on is not what it is judged on
            warm_up, general = general.split(WARM_UP_SPLIT, SPLIT_SEED)
        plan.texts["general"] = _text(general, config)
    ground = Ground(config, parts, plan, identities, headless, warm_up, defaults, finetune_defaults)
    check_search(ground)
    return ground


def _has_head(model: ModelSpec, config: StudyConfig, parts: Parts, defaults: dict[str, Any] | None) -> bool:
    """Say whether a model has a masked-LM head; raises UserError if the study's texts are too long for it."""
    shared = {**(defaults or {}), **config.adapt.given()}
    lengths = [{**shared, **method.adapt}.get("max_length") for method in config.methods if method.name != UNADAPTED]
    try:
        return parts.has_head(model.path, max(length or 0 for length in [config.evaluate.max_length, *lengths]))
    except UserError as error:
        raise UserError(f"study: the model '{model.name}': {error}") from error


def _head(
    plan: Plan, config: StudyConfig, model: ModelSpec, identity: str, corpus: Any, defaults: dict[str, Any]
) -> Base:
    """Add the cell that gives a masked-LM head to a model without one; all methods then start from its result."""
    names = ("max_length", "precision", "head_tokens", "seed")
    given = {key: value for key, value in config.adapt.given().items() if key in names}
    decides = {**{key: defaults[key] for key in names if key in defaults}, **given}
    made = {"model": identity, "method": UNADAPTED, "corpus": str(corpus.fingerprint), "settings": decides}
    cell = Cell("adapt", made, {"model": model.name, "method": HEAD})
    plan.adapt[plan.add(cell)] = {**given, "method": UNADAPTED, "corpus": corpus}
    return Base(cell.key, cell.key)


def _read_domain(plan: Plan, domain: DomainSpec, config: StudyConfig, parts: Parts, column: str) -> None:
    corpus = parts.corpus(domain.corpus, column)
    next(iter(corpus), None)  # a corpus without a document that can be read says so
    if domain.heldout:
        plan.corpora[domain.name] = corpus
        heldout = parts.corpus(domain.heldout, column)
    else:
        plan.corpora[domain.name], heldout = corpus.split(HELDOUT_SHARE, SPLIT_SEED)
    plan.texts[f"domain {domain.name}"] = _text(heldout, config)
    for task in domain.tasks:
        loaded = _read_task(plan, domain.name, task, config, parts)
        if any(reading.text == "task" for reading in plan.readings.values()):
            plan.task_texts[domain.name, task.name] = parts.task_text(loaded)


def _read_task(plan: Plan, home: str, task: TaskSpec, config: StudyConfig, parts: Parts) -> Any:
    # The ratio is no part of any identity: the fingerprint of a loaded task tells its splits.
    ratio = () if task.repartition is None else (task.repartition,)
    loaded = parts.load_task(task.path, task.name, *ratio)
    if task_settings(config, task).get("select") == "dev" and not loaded.dev:
        why = ", as repartition leaves none" if ratio else ""
        raise UserError(f"study: select: dev needs a dev split, and the task '{task.name}' has none{why}; use last.")
    if task.limits:
        whole, loaded = loaded, parts.limited(loaded, **task.limits)
        sizes = {split: (len(getattr(loaded, split)), len(getattr(whole, split))) for split in task.limits}
        plan.limits[home, task.name] = {split: size for split, size in sizes.items() if size[0] < size[1]}
    plan.tasks[home, task.name] = loaded
    known = loaded.scoring(negative=task.negative).metrics
    metric = plan.metrics[home, task.name] = task.metric or known[0]
    if metric not in known:
        raise unknown_name_error(f"metric of the task '{task.name}'", metric, known)
    if task.first is not None:
        first = parts.load_task(task.first, Path(task.first).name)
        if task.limit_first:
            rows, first = len(first.train), parts.limited(first, train=task.limit_first)
            if len(first.train) < rows:
                plan.limits.setdefault((home, task.name), {})[f"train of {first.name}"] = (len(first.train), rows)
        plan.firsts[home, task.name] = first
        parts.check_first(first, loaded)
    return loaded


def _text(corpus: Any, config: StudyConfig) -> Text:
    texts = subsample_documents(corpus, config.evaluate.documents)
    if not texts:
        raise UserError("There is no held-out document to measure on. Give more text, or a 'heldout' of its own.")
    return Text(texts, texts_identity(texts))
