"""The cells of distillation: a teacher that learns a task, and students that learn it from the teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from acclimate.errors import UserError, unknown_name_error
from acclimate.study.cells import Cell
from acclimate.study.choices import Choices, chosen
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.finetuning import task_settings
from acclimate.study.identity import model_fingerprint
from acclimate.study.lessons import DistillSpec, TeacherSpec
from acclimate.study.parts import Parts, check_keywords
from acclimate.study.settings import UNADAPTED, TaskSpec

if TYPE_CHECKING:
    from acclimate.study.plan import Plan

OWN = ("teacher_out", "teacher_seed", "seed", "negative", "metric", "out", "progress", "report_to")
"""Keywords of ``distill`` that the study sets, or that are no part of what a cell is."""
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


def add_distillations(
    plan: Plan, config: StudyConfig, parts: Parts, identities: dict[str, str], choices: Choices | None = None
) -> None:
    """Add the cells of all rows of distillation; those of adaptation and fine-tuning are there already.

    A teacher is fine-tuned once for each adaptation that it comes from, and all seeds of the students share it, as
    they share adaptations. With ``few_shot`` there is one for each seed, so that it sees the examples of that seed.

    Args:
        plan: The plan so far.
        config: The study.
        parts: Its parts.
        identities: Hashes of its models, by name; those of teachers from outside are added.
        choices: What a search chose. A teacher, and a student before distillation, are fine-tuned with what was chosen
            for the models that they are: for the teacher's method, and for the student without adaptation.

    Raises:
        UserError: If a row names a model, method or setting that does not exist, or a task that is no classification.
    """
    defaults = parts.distill_defaults() if config.distill else None
    outside = {}
    for row in config.distill:
        _check(row, config)
        if defaults is not None:
            known = [name for name in defaults if name not in OWN]
            check_keywords(row.settings, known, f"distill.{row.label}")
            if config.search is None:  # which gives some of them other values
                _check_values(row, parts)
        if row.teacher.path:
            outside[row.label] = _from_outside(row.teacher, config, identities)
    models = [model.name for model in config.models]
    places = [(domain, task, seed) for domain in config.domains for task in domain.tasks for seed in config.seeds]
    for domain, task, seed in places:
        # The rows come last: those with the same teacher and student find in the cache what the first one learnt.
        for row in config.distill:
            if row.is_for(domain.name):
                source = outside.get(row.label) or _find(plan, row, domain, task, seed, config.adapt.seed)
                students = row.taught(models)
                ways = _ways(plan, config, row, (domain, task), students, defaults or {}, choices or {})
                _add(plan, parts, row, (domain, task), source, ways, identities, seed)


def _from_outside(teacher: TeacherSpec, config: StudyConfig, identities: dict[str, str]) -> Source:
    """Return a teacher that is no model of the study, and note its hash."""
    known_as, path = f"at {teacher.path}", str(teacher.path)
    if known_as not in identities:
        identities[known_as] = model_fingerprint(path)
    return Source(identities[known_as], None, path, {"model": teacher.name}, config.adapt.seed)


def _check_values(row: DistillSpec, parts: Parts) -> None:
    try:
        parts.check_lesson(row.settings)
    except UserError as error:
        raise UserError(f"study: the row '{row.label}' of distill: {error}") from error


def _check(row: DistillSpec, config: StudyConfig) -> None:
    names, labels = [model.name for model in config.models], [method.label for method in config.methods]
    for name in [*(row.students or ()), *([row.teacher.model] if row.teacher.model else ())]:
        if name not in names:
            raise unknown_name_error(f"model in the row '{row.label}' of distill:", name, names)
    domains = [domain.name for domain in config.domains]
    for name in row.domains or ():
        if name not in domains:
            raise unknown_name_error(f"domain in the row '{row.label}' of distill:", name, domains)
    if row.teacher.model and row.teacher.method not in labels:
        raise unknown_name_error(
            f"method of the teacher in the row '{row.label}' of distill:", row.teacher.method, labels
        )
    if not row.students and not set(names) - {row.teacher.model}:
        raise UserError(f"study: the row '{row.label}' of distill has no student; add another model to 'models'.")


def _find(plan: Plan, row: DistillSpec, domain: DomainSpec, task: TaskSpec, seed: int, other: int) -> Source:
    """Find the model that the study fine-tunes on the task with that seed, as the teacher's method made it."""
    wanted = {"model": row.teacher.model, "domain": domain.name, "method": row.teacher.method, "task": task.name}
    for cell in plan.entries:
        if (
            cell.kind == "finetune"
            and "role" not in cell.labels
            and {**cell.labels, **wanted, "seed": seed} == cell.labels
        ):
            path = None if cell.needs else plan.models[str(row.teacher.model)]
            labels = {name: value for name, value in cell.labels.items() if name not in ("seed", "task", "domain")}
            return Source(cell.identity["model"], cell.needs, path, labels, cell.labels.get("adapt_seed", other))
    raise AssertionError(f"no fine-tuning of {wanted} in the plan")  # every method is fine-tuned on every task


class _Way(NamedTuple):
    """Settings of one row of distillation on one task.

    Attributes:
        teaching: Of the teacher's fine-tuning, with defaults.
        decides: Of distillation, with defaults: what its result depends on.
        given: Of distillation, without defaults.
    """

    teaching: dict[str, Any]
    decides: dict[str, Any]
    given: dict[str, Any]


def _ways(
    plan: Plan,
    config: StudyConfig,
    row: DistillSpec,
    place: tuple[DomainSpec, TaskSpec],
    students: list[str],
    defaults: dict[str, Any],
    choices: Choices,
) -> dict[str, _Way]:
    """Return the settings for each student, and under ``""`` those for the teacher."""
    domain, task = place
    as_it_came = next((method.label for method in config.methods if method.name == UNADAPTED), "")
    models = {"": (row.teacher.model or "", row.teacher.method), **{name: (name, as_it_came) for name in students}}
    ways = {}
    for name, (model, method) in models.items():
        finetuned = chosen(choices, model, domain.name, task.name, method).of_task(task)
        own = {**row.settings}
        for who in dict.fromkeys(("", name)):
            own |= chosen(choices, who, domain.name, task.name, row.label).distill
        ways[name] = _way(task_settings(config, finetuned), own, plan.metrics[domain.name, task.name], defaults)
    return ways


def _way(finetuning: dict[str, Any], own: dict[str, Any], metric: str, defaults: dict[str, Any]) -> _Way:
    settings = {key: finetuning[name] for name, key in (*TEACHING.items(), *STUDYING.items()) if name in finetuning}
    settings |= {name: finetuning[name] for name in (*BOTH, "select") if name in finetuning} | own
    if settings.get("select") == "dev":
        settings["metric"] = metric
    decides = {**{name: value for name, value in defaults.items() if name not in OWN}, **settings}
    teaching = {name: decides.pop(key) for name, key in TEACHING.items() if key in decides}
    teaching |= {name: decides[name] for name in BOTH if name in decides}
    return _Way(teaching, decides, {name: value for name, value in settings.items() if name not in TEACHING.values()})


def _add(
    plan: Plan,
    parts: Parts,
    row: DistillSpec,
    place: tuple[DomainSpec, TaskSpec],
    source: Source,
    ways: dict[str, _Way],
    identities: dict[str, str],
    seed: int,
) -> None:
    """Add the cells of one row, task and seed: that of the teacher, and one for each student."""
    domain, task = place
    loaded = plan.tasks[domain.name, task.name]
    if loaded.scoring().kind not in ("single_label", "multi_label"):
        raise UserError(f"study: '{task.name}' is no classification task, and only those can be distilled.")
    if task.first is not None:
        raise UserError(f"study: '{task.name}' has a first task, which distillation does not know; leave it out.")
    where = {"domain": domain.name, "task": task.name}
    teacher, needs, path = source.identity, source.needs, source.path
    if path is None or not parts.knows_task(path, loaded):
        teaching = ways[""].teaching
        taught = seed if teaching.get("few_shot") else source.seed
        made = {"model": source.identity, "task": loaded.fingerprint(), "settings": teaching, "seed": taught}
        cell = Cell("teacher", made, {**source.labels, **where, "seed": taught}, source.needs)
        teacher = needs = plan.add(cell)
        path = None
        plan.distill[teacher] = {**teaching, "model": source.path}
    for student, way in ways.items():
        if student:
            told = {
                "teacher": teacher,
                "student": identities[student],
                "task": loaded.fingerprint(),
                "settings": way.decides,
                "seed": seed,
            }
            cell = Cell("distill", told, {"model": student, "method": row.label, **where, "seed": seed}, needs)
            plan.distill[plan.add(cell)] = {**way.given, "teacher": path, "student": plan.models[student]}
