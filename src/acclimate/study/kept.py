"""What adapted models kept on end tasks of other domains: the cells, and the rows of the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acclimate.study.cells import Cell
from acclimate.study.config import DomainSpec, StudyConfig
from acclimate.study.finetuning import add_finetunes
from acclimate.study.scored import against, correct, describe

if TYPE_CHECKING:
    from acclimate.study.plan import Plan
    from acclimate.study.summary import Outcome

OTHER = ""
"""Stands for the domain under which the plan keeps these tasks."""
KEPT = "kept"
"""The role, among the labels of a cell, of a fine-tuning that asks what was kept."""


def home_of(labels: dict[str, Any]) -> str:
    """Return where the plan keeps the task of a cell: under its domain, or with the tasks of other domains."""
    return OTHER if labels.get("role") == KEPT else str(labels["domain"])


def add_others(
    plan: Plan,
    config: StudyConfig,
    domain: DomainSpec,
    here: dict[str, Any],
    model: tuple[str, str | None],
    seed: int,
    defaults: dict[str, Any],
) -> None:
    """Add the cells in which a model learns the tasks of other domains.

    A task that the domain itself has, told by its content, is left out there, so that one list of tasks serves
    several domains.

    Args:
        plan: Holds the loaded tasks.
        config: The study.
        domain: What the model was adapted to.
        here: Labels of the model: also the task, if it was adapted for one alone.
        model: Its identity, and the key of the cell that makes it.
        seed: Of fine-tuning.
        defaults: Of ``finetune``.
    """
    own = {plan.tasks[domain.name, task.name].fingerprint() for task in domain.tasks}
    tasks = [task for task in config.other_tasks if plan.tasks[OTHER, task.name].fingerprint() not in own]
    labels = {**here, "role": KEPT, **({"adapted_for": here["task"]} if "task" in here else {})}
    add_finetunes(plan, config, tasks, labels, model, seed, defaults, home=OTHER)


def kept_rows(config: StudyConfig, plan: Plan, outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Return one row per model, domain, method and other task (and task that it was adapted for alone).

    Each is compared with the model as it came, whatever the baseline of the study is; Holm's correction goes over
    these comparisons alone.
    """
    found: dict[tuple[Any, ...], list[tuple[Cell, dict[str, Any]]]] = {}
    for cell in plan.entries:
        result = outcomes[cell.key].result
        if cell.labels.get("role") == KEPT and result is not None:
            place = tuple(cell.labels.get(name) for name in ("model", "domain", "task", "method", "adapted_for"))
            found.setdefault(place, []).append((cell, result))
    rows = []
    for (model, domain, task, method, alone), cells in found.items():
        if method is None:
            continue
        base = found.get((model, domain, task, None, None))
        metric = plan.metrics[OTHER, task]
        row = {"model": model, "domain": domain, "method": method, "task": task, "metric": metric, **describe(cells)}
        row.pop("reliability", None)
        if alone is not None:
            row["adapted_for"] = alone
        if base:
            row["difference"] = against(cells, base, plan.cells)
            if row["difference"]:
                row["before"] = row["difference"][metric]["before"]
        rows.append(row)
    order = [method.label for method in config.methods]
    rows.sort(key=lambda row: (row["model"], row["domain"], row["task"], order.index(row["method"])))
    correct(rows)
    return rows
