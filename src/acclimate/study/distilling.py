"""The cells of distillation: a teacher that learns a task, and students that learn it from the teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acclimate.errors import UserError, unknown
from acclimate.study.cells import Cell
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.identity import model_identity
from acclimate.study.lessons import DistillSpec
from acclimate.study.parts import Parts, check_keywords
from acclimate.study.settings import TaskSpec

if TYPE_CHECKING:
    from acclimate.study.plan import Plan

OWN = ("teacher_out", "teacher_seed", "seed", "negative", "metric", "out", "progress")
"""Keywords of ``distill`` that the study sets."""
TEACHING = {
    "epochs": "teacher_epochs",
    "learning_rate": "teacher_learning_rate",
    "confidence_penalty": "teacher_penalty",
}
STUDYING = {"epochs": "student_epochs", "learning_rate": "student_learning_rate"}
"""Settings of fine-tuning, and what ``distill`` calls them."""
BOTH = ("batch_size", "max_length", "warmup", "weight_decay", "few_shot", "precision", "negative")
"""What holds for the fine-tuning of the teacher, too."""


@dataclass(frozen=True)
class Source:
    """A model that can become a teacher.

    Attributes:
        identity: Its hash, or the key of the cell that makes it.
        needs: That key, or None.
        path: Where it is if no cell makes it.
        labels: Where it stands in the study.
        seed: Of its fine-tuning.
    """

    identity: str
    needs: str | None
    path: str | None
    labels: dict[str, Any]
    seed: int


def add_distillations(plan: Plan, config: StudyConfig, parts: Parts, identities: dict[str, str]) -> None:
    """Add the cells of all rows of distillation; those of adaptation and fine-tuning are there already.

    A teacher is fine-tuned once for each adaptation that it comes from, and all seeds of the students share it, as
    they share adaptations. With ``few_shot`` there is one for each seed, so that it sees the examples of that seed.

    Args:
        plan: The plan so far.
        config: The study.
        parts: Its parts.
        identities: Hashes of its models, by name.

    Raises:
        UserError: If a row names a model, method or setting that does not exist, or a task that is no classification.
    """
    defaults = parts.distill_defaults() if config.distill else None
    for row in config.distill:
        _check(row, config)
        if defaults is not None:
            known = [name for name in defaults if name not in OWN]
            check_keywords(row.settings, known, f"distill.{row.label}")
        path = row.teacher.path
        outside = (
            Source(model_identity(path), None, path, {"model": row.teacher.name}, config.adapt.seed) if path else None
        )
        students = row.students or [model.name for model in config.models if model.name != row.teacher.model]
        for domain in config.domains:
            for task in domain.tasks:
                for seed in config.seeds:
                    source = outside or _find(plan, row, domain, task, seed, config.adapt.seed)
                    _add(plan, config, parts, row, (domain, task), source, students, identities, seed, defaults or {})


def _check(row: DistillSpec, config: StudyConfig) -> None:
    names, labels = [model.name for model in config.models], [method.label for method in config.methods]
    for name in [*(row.students or ()), *([row.teacher.model] if row.teacher.model else ())]:
        if name not in names:
            raise unknown(f"model in the row '{row.label}' of distill:", name, names)
    if row.teacher.model and row.teacher.method not in labels:
        raise unknown(f"method of the teacher in the row '{row.label}' of distill:", row.teacher.method, labels)
    if not row.students and not set(names) - {row.teacher.model}:
        raise UserError(f"study: the row '{row.label}' of distill has no student; add another model to 'models'.")


def _find(plan: Plan, row: DistillSpec, domain: DomainSpec, task: TaskSpec, seed: int, other: int) -> Source:
    """Find the model that the study fine-tunes on the task with that seed, as the teacher's method made it."""
    wanted = {"model": row.teacher.model, "domain": domain.name, "method": row.teacher.method, "task": task.name}
    for cell in plan.entries:
        if cell.kind == "finetune" and {**cell.labels, **wanted, "seed": seed} == cell.labels:
            path = None if cell.needs else plan.models[str(row.teacher.model)]
            labels = {name: value for name, value in cell.labels.items() if name not in ("seed", "task", "domain")}
            return Source(cell.identity["model"], cell.needs, path, labels, cell.labels.get("adapt_seed", other))
    raise AssertionError(f"no fine-tuning of {wanted} in the plan")  # every method is fine-tuned on every task


def _add(
    plan: Plan,
    config: StudyConfig,
    parts: Parts,
    row: DistillSpec,
    place: tuple[DomainSpec, TaskSpec],
    source: Source,
    students: list[str],
    identities: dict[str, str],
    seed: int,
    defaults: dict[str, Any],
) -> None:
    """Add the cells of one row, task and seed: that of the teacher, and one for each student."""
    from acclimate.study.plan import task_settings

    domain, task = place
    loaded, finetuning = plan.tasks[domain.name, task.name], task_settings(config, task)
    if loaded.scoring().kind not in ("single_label", "multi_label"):
        raise UserError(f"study: '{task.name}' is no classification task, and only those can be distilled.")
    if task.first is not None:
        raise UserError(f"study: '{task.name}' has a first task, which distillation does not know; leave it out.")
    settings = {key: finetuning[name] for name, key in (*TEACHING.items(), *STUDYING.items()) if name in finetuning}
    settings |= {name: finetuning[name] for name in (*BOTH, "select") if name in finetuning} | row.settings
    if settings.get("select") == "dev":
        settings["metric"] = plan.metrics[domain.name, task.name]
    decides = {**{name: value for name, value in defaults.items() if name not in OWN}, **settings}
    teaching = {name: decides.pop(key) for name, key in TEACHING.items() if key in decides}
    teaching |= {name: decides[name] for name in BOTH if name in decides}
    where = {"domain": domain.name, "task": task.name}
    teacher, needs, path = source.identity, None, source.path
    if path is None or not parts.knows_task(path, loaded):
        chosen = seed if teaching.get("few_shot") else source.seed
        made = {"model": source.identity, "task": loaded.fingerprint(), "settings": teaching, "seed": chosen}
        cell = Cell("teacher", made, {**source.labels, **where, "seed": chosen}, source.needs)
        teacher = needs = plan.add(cell)
        path = None
        plan.distill[teacher] = {**teaching, "model": source.path}
    given = {name: value for name, value in settings.items() if name not in TEACHING.values()}
    for student in students:
        told = {
            "teacher": teacher,
            "student": identities[student],
            "task": loaded.fingerprint(),
            "settings": decides,
            "seed": seed,
        }
        cell = Cell("distill", told, {"model": student, "method": row.label, **where, "seed": seed}, needs)
        plan.distill[plan.add(cell)] = {**given, "teacher": path, "student": plan.models[student]}
