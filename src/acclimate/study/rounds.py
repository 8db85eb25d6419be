"""The rounds of a search: each lays out the cells of what is tried, given what the rounds before it chose.

First settings of methods: of fine-tuning, of adaptation, parameters. Then those of teachers, which come from models of
the first round. Then those of distillation, which come from the teachers. So did the paper of DoKTra: fine-tuning of
the student, the penalty of the teacher, and then distillation each had a grid of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from acclimate.errors import UserError
from acclimate.study.cells import Cell, chain
from acclimate.study.choices import Choice, Choices, Place, assembled, hand_over, narrowed
from acclimate.study.config import DomainSpec, MethodSpec, StudyConfig, TaskSpec
from acclimate.study.distilling import OWN, TEACHING, add_distillations
from acclimate.study.grid import SearchSettings, combinations, possible
from acclimate.study.lessons import DistillSpec
from acclimate.study.parts import check_keywords, check_own
from acclimate.study.settings import UNADAPTED

if TYPE_CHECKING:
    from acclimate.study.plan import Ground, Plan

Lists = dict[tuple[str, str], list[Any]]


@dataclass(frozen=True)
class Trial:
    """A combination of settings, and the cells whose scores on dev judge it."""

    choice: Choice
    keys: list[str]


@dataclass
class Hunt:
    """The search for the best settings of one place, or of several that share them.

    Attributes:
        stage: ``"method"``, ``"teacher"`` or ``"distillation"``.
        places: What the choice is for.
        metric: What is compared.
        tolerance: See :class:`acclimate.study.grid.SearchSettings`.
        possible: How many combinations there are.
        trials: Those that are tried.
    """

    stage: str
    places: list[Place]
    metric: str
    tolerance: float
    possible: int
    trials: list[Trial] = field(default_factory=list)


@dataclass
class Round:
    """What is tried at the same time: the cells, and which of them belong to which search."""

    plan: Plan
    hunts: list[Hunt] = field(default_factory=list)

    def take(self, hunt: Hunt, choice: Choice, source: Plan, entries: Sequence[Cell]) -> None:
        """Add a trial with the cells that judge it, and what they need, from the plan that has them."""
        for cell in entries:
            told = replace(cell, labels={**cell.labels, "search": choice.text})
            for link in (*reversed(chain(cell, source.cells)[1:]), told):
                if link.key not in self.plan.cells:
                    self.plan.add(link)
        hand_over(source, self.plan)
        hunt.trials.append(Trial(choice, [cell.key for cell in entries]))


def rounds(ground: Ground, choices: Choices) -> Iterator[Round]:
    """Yield the rounds that have something to try. ``choices`` must be filled in between them by who asks."""
    for make in (_methods, _teachers, _distillations):
        made = Round(ground.fresh(trial=True))
        make(made, ground, _search(ground), choices)
        if made.hunts:
            yield made


def check_search(ground: Ground) -> None:
    """Check names and values of a search before any time is spent.

    Raises:
        UserError: If a setting or value makes no sense, or a task has no dev split.
    """
    config, parts = ground.config, ground.parts
    if (search := config.search) is None:
        return
    if not any(_places(config)):
        raise UserError("study: there is no task to search settings on; give a domain 'tasks', or leave 'search' out.")
    for domain, task in searched(config):
        place = (domain.name, task.name)
        metric = ground.plan.metrics[place]
        trial = ground.trial_tasks[place]  # making it sees that there is a dev split
        if metric not in trial.scoring(negative=task.negative).metrics:
            raise UserError(
                f"study: '{task.name}' is judged by {metric}, which its dev split does not have, so nothing can be "
                "searched on it; give its dev rows documents, or name another metric."
            )
    if search.per == "task" and (search.adapt or any(method.search for method in config.methods)):
        raise UserError(
            "study: with search.per: task all methods share their settings, and not all have parameters or an "
            "adaptation; search these with per: method."
        )
    given = [*search.adapt, *(name for method in config.methods if method.search for name in method.search.adapt)]
    check_own(given, "search.adapt")
    if ground.adapt_defaults is not None:
        check_keywords(given, ground.adapt_defaults, "search.adapt")
    for method in config.methods:
        for combination in combinations(_parameters(method), "one-factor", 0):
            ground.parts.method(method.name, Choice.of(combination).of_method(method).parameters)
    known = None if not config.distill else parts.distill_defaults()
    if known is not None:
        own = (name for row in config.distill if row.search for name in row.search)
        check_keywords([*search.distill, *own], [name for name in known if name not in OWN], "search.distill")


def _search(ground: Ground) -> SearchSettings:
    assert ground.config.search is not None, "nothing to search"
    return ground.config.search


def _parameters(method: MethodSpec) -> Lists:
    given = method.search.parameters if method.search else {}
    return {("parameters", name): values for name, values in given.items()}


def _lists(search: SearchSettings, task: TaskSpec, methods: Sequence[MethodSpec]) -> Lists:
    """Return the values to try for methods on a task: their own before those of the study."""
    found: Lists = {("finetune", name): values for name, values in {**search.finetune, **(task.search or {})}.items()}
    for method in methods:
        if method.name != UNADAPTED:
            adapt = {**search.adapt, **(method.search.adapt if method.search else {})}
            found |= {("adapt", name): values for name, values in adapt.items()} | _parameters(method)
    return found


def _combinations(search: SearchSettings, lists: Lists) -> Iterator[Choice]:
    return map(Choice.of, combinations(lists, search.combinations, search.seed))


def _places(config: StudyConfig) -> Iterator[tuple[DomainSpec, TaskSpec]]:
    return ((domain, task) for domain in config.domains for task in domain.tasks)


def searched(config: StudyConfig) -> list[tuple[DomainSpec, TaskSpec]]:
    """Return each task on which something is searched, with its domain."""
    if (search := config.search) is None:
        return []
    return [
        (domain, task)
        for domain, task in _places(config)
        if _lists(search, task, config.methods)
        or any(search.distill or row.search for row in config.distill if row.is_for(domain.name))
    ]


def _seeds(ground: Ground) -> list[int]:
    return _search(ground).seeds or ground.config.seeds


def _methods(made: Round, ground: Ground, search: SearchSettings, choices: Choices) -> None:
    config = ground.config
    groups = [config.methods] if search.per == "task" else [[method] for method in config.methods]
    for model in config.models:
        for domain, task in _places(ground.config):
            for group in groups:
                if not (lists := _lists(search, task, group)):
                    continue
                places = [(model.name, domain.name, task.name, method.label) for method in group]
                metric = ground.plan.metrics[domain.name, task.name]
                hunt = Hunt("method", places, metric, search.tolerance, possible(lists))
                for choice in _combinations(search, lists):
                    part = narrowed(ground, model, domain, task, group, choice, seeds=_seeds(ground), trial=True)
                    judged = [cell for cell in part.entries if _is_of(cell, "finetune", task)]
                    made.take(hunt, choice, part, judged)
                made.hunts.append(hunt)


def _is_of(cell: Cell, kind: str, task: TaskSpec) -> bool:
    """Say whether a cell is of a kind and a task, and not of a task of another domain."""
    return cell.kind == kind and cell.labels.get("task") == task.name and "role" not in cell.labels


def _for_distillation(search: SearchSettings, row: DistillSpec, of_teacher: bool) -> Lists:
    given = {**search.distill, **(row.search or {})}
    return {("distill", name): v for name, v in given.items() if (name in TEACHING.values()) == of_teacher}


def _rows(
    ground: Ground, choices: Choices, of_teacher: bool
) -> Iterator[tuple[DistillSpec, DomainSpec, TaskSpec, Lists, Plan]]:
    """Yield each row of distillation with a task, what is to be tried there, and the models that teachers are of."""
    sources: dict[tuple[str, str], Plan] = {}
    for row in ground.config.distill:
        if lists := _for_distillation(_search(ground), row, of_teacher):
            for domain, task in _places(ground.config):
                if not row.is_for(domain.name):
                    continue
                place = (domain.name, task.name)
                if place not in sources:
                    part = domain.model_copy(update={"tasks": [task]})
                    sources[place] = assembled(ground, choices, [part], seeds=_seeds(ground), trial=True)
                yield row, domain, task, lists, sources[place]


def _laid_out(
    ground: Ground, source: Plan, row: DistillSpec, domain: DomainSpec, task: TaskSpec, choices: Mapping[Place, Choice]
) -> Plan:
    """Return the models and, with what is chosen, the cells of one row of distillation on one task."""
    plan, part = source.copied(), domain.model_copy(update={"tasks": [task]})
    changes = {"domains": [part], "distill": [row.model_copy(update={"domains": None})], "seeds": _seeds(ground)}
    config = ground.config.model_copy(update=changes)
    add_distillations(plan, config, ground.parts, ground.identities, choices)
    return plan


def _teachers(made: Round, ground: Ground, search: SearchSettings, choices: Choices) -> None:
    for row, domain, task, lists, source in _rows(ground, choices, of_teacher=True):
        place = ("", domain.name, task.name, row.label)
        metric = ground.plan.metrics[domain.name, task.name]
        hunt = Hunt("teacher", [place], metric, search.teacher_tolerance, possible(lists))
        for choice in _combinations(search, lists):
            plan = _laid_out(ground, source, row, domain, task, {**choices, place: choice})
            judged = _as_finetunings(plan, _seeds(ground))
            if judged:  # a teacher that already knows the task learns nothing
                made.take(hunt, choice, plan, judged)
        if hunt.trials:
            made.hunts.append(hunt)


def _as_finetunings(plan: Plan, seeds: list[int]) -> list[Cell]:
    """Turn the teachers of a plan, one entry for each seed, into fine-tunings with these seeds that are not kept."""
    made = []
    for cell, seed in zip([cell for cell in plan.entries if cell.kind == "teacher"], seeds, strict=False):
        options = dict(plan.distill[cell.key])
        path, labels = options.pop("model"), {**cell.labels, "seed": seed}
        if path:  # from outside of the study
            plan.models[path] = path
            labels["model"] = path
        trial = Cell("finetune", {**cell.identity, "seed": seed}, labels, cell.needs)
        plan.finetune[trial.key] = options
        made.append(trial)
    return made


def _distillations(made: Round, ground: Ground, search: SearchSettings, choices: Choices) -> None:
    for row, domain, task, lists, source in _rows(ground, choices, of_teacher=False):
        for student in row.taught([model.name for model in ground.config.models]):
            place = (student, domain.name, task.name, row.label)
            metric = ground.plan.metrics[domain.name, task.name]
            hunt = Hunt("distillation", [place], metric, search.tolerance, possible(lists))
            alone = row.model_copy(update={"students": [student]})
            for choice in _combinations(search, lists):
                plan = _laid_out(ground, source, alone, domain, task, {**choices, place: choice})
                made.take(hunt, choice, plan, [cell for cell in plan.entries if cell.kind == "distill"])
            made.hunts.append(hunt)
