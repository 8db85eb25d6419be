"""Settings that a search chose, or tries, for one row of a study on one task, and the cells that come of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, TaskSpec
from acclimate.study.kept import OTHER
from acclimate.study.settings import UNADAPTED

if TYPE_CHECKING:
    from acclimate.study.plan import Ground, Plan

Place = tuple[str, str, str, str]
"""Model, domain, task and row; the model of the teacher of a row of distillation is ``""``."""
Combination = Mapping[tuple[str, str], Any]
"""Values by (section, name); the sections are the attributes of :class:`Choice`."""
HELD = ("adapt", "finetune", "distill", "models")
"""What a plan holds for its cells."""
CHOSEN = "chosen on dev"
"""Stands for a value that a search chose and that is not the same everywhere."""


@dataclass(frozen=True)
class Choice:
    """Settings that take the place of those of the study.

    Attributes:
        finetune: Of fine-tuning.
        adapt: Of adaptation.
        parameters: Of the method.
        distill: Of distillation.
    """

    finetune: dict[str, Any] = field(default_factory=dict)
    adapt: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    distill: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, combination: Combination) -> Choice:
        """Sort a combination into its sections."""
        made = cls()
        for (section, name), value in combination.items():
            getattr(made, section)[name] = value
        return made

    @property
    def settings(self) -> dict[str, Any]:
        """All of them with names that people can tell apart."""
        adapt = {f"adapt.{name}": value for name, value in self.adapt.items()}
        return {**adapt, **self.parameters, **self.finetune, **self.distill}

    @property
    def text(self) -> str:
        """One line of them."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    def of_task(self, task: TaskSpec) -> TaskSpec:
        """Return a task of a study file with these settings of fine-tuning."""
        return task.model_copy(update=self.finetune)

    def of_method(self, method: MethodSpec) -> MethodSpec:
        """Return a method of a study file with these parameters and settings of adaptation; it keeps its label."""
        return method.model_copy(update={**self.parameters, "adapt": {**method.adapt, **self.adapt}})


Choices = Mapping[Place, Choice]


def chosen(choices: Choices, *place: str) -> Choice:
    """Return what was chosen for a place; nothing if it was not searched."""
    model, domain, task, row = place
    return choices.get((model, domain, task, row), Choice())


def settled(settings: Mapping[str, Any], row: str, searched: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a row as they were used: what a search chose in the place of what the study file says.

    Args:
        settings: Those of the study file, defaults included or not.
        row: Label of the method, or of the row of distillation.
        searched: Rows of the results of a search.
    """
    mine = [entry for entry in searched if row in entry["methods"]]
    tried = {name for entry in mine for trial in entry["trials"] for name in trial["settings"]}
    used = dict(settings)
    for name in sorted(tried & settings.keys()):
        values = [entry["chosen"][name] for entry in mine if name in (entry["chosen"] or {})]
        used[name] = values[0] if values and all(value == values[0] for value in values) else CHOSEN
    return used


def narrowed(
    ground: Ground,
    model: ModelSpec,
    domain: DomainSpec,
    task: TaskSpec | None,
    methods: Sequence[MethodSpec],
    choice: Choice,
    *,
    seeds: list[int] | None = None,
    trial: bool = False,
) -> Plan:
    """Lay out some methods of one model on one task with settings of their own; without distillation.

    Args:
        ground: What the study names.
        model: The model.
        domain: The domain.
        task: Its task; None where it has none.
        methods: The methods.
        choice: The settings.
        seeds: Of fine-tuning; None for those of the study.
        trial: Whether dev takes the place of test.
    """
    settled = [choice.of_method(method) for method in methods]
    part = domain.model_copy(update={"tasks": [choice.of_task(task)] if task else []})
    own = {ground.plan.tasks[domain.name, entry.name].fingerprint() for entry in domain.tasks}
    others = [
        other for other in ground.config.other_tasks if ground.plan.tasks[OTHER, other.name].fingerprint() not in own
    ]
    changes = {"models": [model], "domains": [part], "methods": settled, "distill": [], "other_tasks": others}
    plan = ground.fresh(trial)
    if choice.adapt or choice.parameters:
        for method in settled:
            if method.name != UNADAPTED:  # it is adapted for this task alone, since each task may choose otherwise
                plan.settings[method.label] = ground.parts.method(method.name, method.parameters)
                plan.readings[method.label] = replace(plan.readings[method.label], alone=True)
    ground.lay_out(plan, ground.config.model_copy(update={**changes, **({"seeds": seeds} if seeds else {})}))
    return plan


def assembled(
    ground: Ground,
    choices: Choices,
    domains: Sequence[DomainSpec] | None = None,
    *,
    seeds: list[int] | None = None,
    trial: bool = False,
) -> Plan:
    """Lay out all methods of all models with what was chosen for them; without distillation.

    Args:
        ground: What the study names.
        choices: What was chosen.
        domains: Which of its domains; None for all.
        seeds: As in :func:`narrowed`.
        trial: As in :func:`narrowed`.
    """
    plan, known = ground.fresh(trial), set[Any]()
    for model in ground.config.models:
        for domain in ground.config.domains if domains is None else domains:
            tasks: list[TaskSpec | None] = [*domain.tasks] or [None]
            for task in tasks:
                for method in ground.config.methods:
                    choice = chosen(choices, model.name, domain.name, task.name if task else "", method.label)
                    part = narrowed(ground, model, domain, task, [method], choice, seeds=seeds, trial=trial)
                    for cell in part.entries:
                        what = (cell.key, *sorted(cell.labels.items()))
                        if what not in known:  # tasks of a domain share what is adapted and measured for all of it
                            known.add(what)
                            plan.add(cell)
                    hand_over(part, plan)
    return plan


def hand_over(source: Plan, plan: Plan) -> None:
    """Give a plan what another one holds for its cells."""
    for name in HELD:
        for key, held in getattr(source, name).items():
            getattr(plan, name).setdefault(key, held)
