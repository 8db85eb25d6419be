"""The cells of fine-tuning: a model, a task, settings and a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.study.cells import Cell
from acclimate.study.config import StudyConfig
from acclimate.study.parts import FIRST_OPTIONS, FIRST_STAGE
from acclimate.study.settings import TaskSpec

if TYPE_CHECKING:
    from acclimate.study.plan import Plan


def add_finetunes(
    plan: Plan,
    config: StudyConfig,
    tasks: list[TaskSpec],
    here: dict[str, Any],
    model: tuple[str, str | None],
    seed: int,
    defaults: dict[str, Any],
    home: str | None = None,
) -> None:
    """Add the cells of a model on tasks with a seed.

    Args:
        plan: Holds the loaded tasks.
        config: The study.
        tasks: What it learns.
        here: Labels of the cells.
        model: Its identity, and the key of the cell that makes it.
        seed: Of fine-tuning.
        defaults: Of ``finetune``.
        home: Where the plan keeps the tasks: by default under the domain of the labels.
    """
    for task in tasks:
        place = (here["domain"] if home is None else home, task.name)
        given, loaded = task_settings(config, task), plan.tasks[place]
        if given.get("select") == "dev":
            given["metric"] = plan.metrics[place]
        first = plan.firsts.get(place)
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
        identity = {"model": model[0], "task": loaded.fingerprint(), "settings": decides, "seed": seed}
        cell = Cell("finetune", identity, {**here, "task": task.name, "seed": seed}, model[1])
        plan.finetune[plan.add(cell)] = {**given, "first": first} if first else given


def task_settings(config: StudyConfig, task: TaskSpec) -> dict[str, Any]:
    """Return the settings of fine-tuning that were given for a task: its own before those of the study."""
    given = {**config.finetune.given(), **task.given()}
    if task.negative:
        given["negative"] = tuple(task.negative)
    given |= {key: value for key in FIRST_STAGE if (value := getattr(task, key)) is not None}
    return given
