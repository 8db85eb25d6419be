"""From a study to its cells: what has to be adapted, measured and fine-tuned, in the order of work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.errors import UserError, unknown
from acclimate.masking import identify
from acclimate.study.cells import Cell
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig, TaskSpec
from acclimate.study.distilling import add_distillations
from acclimate.study.identity import choose_texts, model_identity, texts_identity
from acclimate.study.parts import FIRST_ADAPT_OPTIONS, FIRST_OPTIONS, FIRST_STAGE, HARMLESS, RESERVED, Parts
from acclimate.study.reading import UNADAPTED, Reading, read_methods

HELDOUT_SHARE = 0.02
SPLIT_SEED = 0
WARM_UP_SPLIT = 0.5
HEAD = "warm-up of the missing head"


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


@dataclass
class Plan:
    """The cells of a study, and the data that they read.

    Attributes:
        cells: In the order of work: an adaptation comes before what needs it. Each key occurs once.
        entries: Every place of the study that a cell fills; several places may share one cell.
        models: Path of each model, by name.
        corpora: Text to adapt to, by domain; ``"general"`` is what a missing head is warmed up on.
        texts: Documents to measure on, by ``"general"`` or name of the domain.
        tasks: Loaded tasks, by (domain, task name).
        firsts: What is learnt before some of them, by the same.
        metrics: What each of them is judged by.
        adapt: Keywords for ``adapt``, its corpus among them, by key of the cell.
        finetune: Keywords for ``finetune`` by key of the cell.
        distill: Keywords of the cells of distillation and of their teachers, by key.
        settings: Parameters of each method, defaults included, by label.
        readings: What each method reads, by label.
        task_texts: Text of the train split of tasks, by (domain, task name), where a method reads it.
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

    def add(self, cell: Cell) -> str:
        """Note a cell at its place; return its key."""
        self.entries.append(cell)
        self.cells.setdefault(cell.key, cell)
        return cell.key


def make_plan(config: StudyConfig, parts: Parts) -> Plan:
    """Read what the study names, check all of it, and lay out the cells.

    Nothing is trained here, so that a wrong path or name is found before any time is spent.

    Raises:
        UserError: If a model, method, keyword, text or task does not exist or cannot be used.
    """
    plan = Plan(models={model.name: model.path for model in config.models})
    defaults = parts.adapt_defaults()
    read_methods(plan, config, parts, defaults)
    finetune_defaults = parts.finetune_defaults()
    column = str(config.adapt.given().get("text_column", "text"))
    identities = {model.name: model_identity(model.path) for model in config.models}
    headless = {model.name for model in config.models if not parts.has_head(model.path)}
    for domain in config.domains:
        _read_domain(plan, domain, config, parts, column)
    warm_up = plan.corpora[config.domains[0].name]
    if config.general:
        general = parts.corpus(config.general, column)
        if headless:  # what a head is warmed up on is not what it is judged on
            warm_up, general = general.split(WARM_UP_SPLIT, SPLIT_SEED)
        plan.texts["general"] = _text(general, config)
    for model in config.models:
        base = Base(identities[model.name])
        if model.name in headless:
            base = _head(plan, config, model, base.identity, warm_up, defaults or {})
        for domain in config.domains:
            _lay_out(plan, config, model, domain, base, defaults or {}, finetune_defaults or {})
    add_distillations(plan, config, parts, identities)
    return plan


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
    if domain.heldout:
        plan.corpora[domain.name] = corpus
        heldout = parts.corpus(domain.heldout, column)
    else:
        plan.corpora[domain.name], heldout = corpus.split(HELDOUT_SHARE, SPLIT_SEED)
    plan.texts[f"domain {domain.name}"] = _text(heldout, config)
    for task in domain.tasks:
        # The ratio is no part of any identity: the fingerprint of a loaded task tells its splits.
        ratio = () if task.repartition is None else (task.repartition,)
        if ratio and task_settings(config, task).get("select") == "dev":
            raise UserError(f"study: repartition leaves the task '{task.name}' no dev split; use select: last.")
        loaded = plan.tasks[domain.name, task.name] = parts.load_task(task.path, task.name, *ratio)
        known = loaded.scoring(negative=task.negative).metrics
        metric = plan.metrics[domain.name, task.name] = task.metric or known[0]
        if metric not in known:
            raise unknown(f"metric of the task '{task.name}'", metric, known)
        if task.first is not None:
            plan.firsts[domain.name, task.name] = first = parts.load_task(task.first, Path(task.first).name)
            parts.check_first(first, loaded)
        if any(reading.text == "task" for reading in plan.readings.values()):
            plan.task_texts[domain.name, task.name] = parts.task_text(loaded)


def _text(corpus: Any, config: StudyConfig) -> Text:
    texts = choose_texts(corpus, config.evaluate.documents)
    if not texts:
        raise UserError("There is no held-out document to measure on. Give more text, or a 'heldout' of its own.")
    return Text(texts, texts_identity(texts))


def _lay_out(
    plan: Plan,
    config: StudyConfig,
    model: ModelSpec,
    domain: DomainSpec,
    base: Base,
    adapt_defaults: dict[str, Any],
    finetune_defaults: dict[str, Any],
) -> None:
    """Add the cells of one model in one domain."""
    place = {"model": model.name, "domain": domain.name}
    for cell in _losses(plan, config, {**place, "method": None}, base.identity, base.needs):
        plan.add(cell)  # every study knows the losses of the model as it came
    for method in config.methods:
        here = {**place, "method": method.label}
        if method.name == UNADAPTED:
            for index, seed in enumerate(config.seeds):
                _finetunes(plan, config, domain, here, base.identity, base.needs, (index, seed), finetune_defaults)
            continue
        seeds = config.adapt_seeds or [config.adapt.seed]
        for part, labels in plan.readings[method.label].scopes(domain):
            there = {**here, **labels}
            adapted = []
            for seed in seeds:
                cell = _adaptation(plan, config, method, base, there, seed, adapt_defaults)
                adapted.append(cell.key)
                for loss in _losses(plan, config, {**there, "adapt_seed": seed}, cell.key, cell.key):
                    plan.add(loss)
            for index, seed in enumerate(config.seeds):
                source = adapted[index % len(adapted)]
                where = {**there, "adapt_seed": seeds[index % len(seeds)]}
                _finetunes(plan, config, part, where, source, source, (index, seed), finetune_defaults)


def _adaptation(
    plan: Plan,
    config: StudyConfig,
    method: MethodSpec,
    base: Base,
    here: dict[str, Any],
    seed: int,
    defaults: dict[str, Any],
) -> Cell:
    given = {**config.adapt.given(), **method.adapt, "seed": seed}
    budget = ("steps", "epochs", "tokens", "max_minutes")
    if any(key in method.adapt for key in budget):  # a budget of its own takes the place of the shared one
        given = {key: value for key, value in given.items() if key not in budget or key in method.adapt}
    known = {key: value for key, value in defaults.items() if key not in RESERVED}
    decides = {
        key: value
        for key, value in {**known, **given}.items()
        if key not in HARMLESS and (key in FIRST_ADAPT_OPTIONS or value != known.get(key))
    }
    masking = identify(
        decides.pop("masking", None), decides.get("mask_rate", 0.15), decides.pop("masking_settings", None)
    )
    if masking is not None:  # cells from before there was a choice keep their keys
        decides["masking"] = masking
    read, told = plan.readings[method.label].sources(plan, here, given)
    cell = Cell(
        "adapt",
        {
            "model": base.identity,
            "method": method.name,
            "parameters": plan.settings[method.label],
            **told,
            "settings": decides,
        },
        {**here, "adapt_seed": seed},
        base.needs,
    )
    plan.adapt[plan.add(cell)] = {
        **given,
        "method": method.name,
        "settings": method.parameters or None,
        **read,
    }
    return cell


def _losses(plan: Plan, config: StudyConfig, here: dict[str, Any], model: str, needs: str | None) -> Iterator[Cell]:
    for role, name in (("domain", f"domain {here['domain']}"), ("general", "general")):
        if name in plan.texts:
            identity = {
                "model": model,
                "texts": plan.texts[name].identity,
                "max_length": config.evaluate.max_length,
            }
            yield Cell("loss", identity, {**here, "text": role}, needs)


def _finetunes(
    plan: Plan,
    config: StudyConfig,
    domain: DomainSpec,
    here: dict[str, Any],
    model: str,
    needs: str | None,
    seed: tuple[int, int],
    defaults: dict[str, Any],
) -> None:
    for task in domain.tasks:
        given, loaded = task_settings(config, task), plan.tasks[domain.name, task.name]
        if given.get("select") == "dev":
            given["metric"] = plan.metrics[domain.name, task.name]
        first = plan.firsts.get((domain.name, task.name))
        told = {**given, "first": first.fingerprint()} if first else given
        reserved = ("model", "task", "seed", "out", "progress")
        known = {key: value for key, value in defaults.items() if key not in reserved}
        decides = {
            name: value
            for name, value in {**known, **told}.items()
            if name in FIRST_OPTIONS or value != known.get(name)
        }
        if decides.get("select", "last") == "last":
            decides.pop("metric", None)  # it only chooses between epochs
        if decides.get("max_length", 0) is None:
            decides["max_length"] = loaded.default_length
        identity = {
            "model": model,
            "task": loaded.fingerprint(),
            "settings": decides,
            "seed": seed[1],
        }
        cell = Cell("finetune", identity, {**here, "task": task.name, "seed": seed[1]}, needs)
        plan.finetune[plan.add(cell)] = {**given, "first": first} if first else given


def task_settings(config: StudyConfig, task: TaskSpec) -> dict[str, Any]:
    """Return the settings of fine-tuning that were given for a task: its own before those of the study."""
    given = {**config.finetune.given(), **task.given()}
    if task.negative:
        given["negative"] = tuple(task.negative)
    given |= {key: value for key in FIRST_STAGE if (value := getattr(task, key)) is not None}
    return given
