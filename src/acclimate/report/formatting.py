"""Names of metrics, losses, places and methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from acclimate.data.documents import count_units
from acclimate.models.kinds import MASKED, ModelKind, get_kind
from acclimate.results.adaptations import AdaptationRow
from acclimate.results.cells import interval_text, joined
from acclimate.results.scores import DistillationRow, Learning, LossRow, TaskScores
from acclimate.results.study import StudyResults

METRIC_NAMES = {
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "positive_micro_f1": "micro-F1 of the positive classes",
    "document_f1": "document F1",
    "unseen_f1": "F1 of unseen entities",
    "overlap_f1": "overlap F1",
    "boundary_f1": "boundary F1",
    "f1": "F1",
    "mrr": "MRR",
    "rmse": "RMSE",
    "mae": "MAE",
}
Row = TaskScores | LossRow | AdaptationRow | DistillationRow


def metric_name(metric: str) -> str:
    """Return the display name of a metric."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def shown_metrics(rows: Iterable[TaskScores]) -> list[str]:
    """Return the metrics of the rows in order, without micro-F1 where it is the accuracy and not what counts."""
    rows = list(rows)
    hidden = {"micro_f1"} if all("accuracy" in row.metrics for row in rows if "micro_f1" in row.metrics) else set()
    hidden -= {row.metric for row in rows}
    return [name for name in dict.fromkeys(metric for row in rows for metric in row.metrics) if name not in hidden]


def loss_kinds(rows: Iterable[LossRow]) -> list[ModelKind]:
    """Return the distinct kinds of the models whose losses are given.

    Raises:
        UserError: If a kind is not registered, because the package that defines it is missing.
    """
    return [get_kind(name) for name in dict.fromkeys(row.kind or MASKED.name for row in rows)]


def loss_name(rows: Iterable[LossRow]) -> str:
    """Return the name of the loss, such as "masked-LM loss"."""
    return " or ".join(kind.loss_name for kind in loss_kinds(rows))


def loss_title(rows: Iterable[LossRow]) -> str:
    """Return the name of the loss with its unit, starting with a capital letter."""
    text = " or ".join(f"{kind.loss_name} in {kind.loss_unit}" for kind in loss_kinds(rows))
    return text[:1].upper() + text[1:]


def grouped_tests(rows: Sequence[TaskScores]) -> str:
    """Say of which tasks groups of test items are the units of intervals and tests, and how many there are."""
    found = {row.task: count_units(row.test_items, row.test_units, row.group_name) for row in rows if row.test_units}
    shown = joined([f"the {units} of {task}" for task, units in found.items()])
    return f" Units of intervals and p-values are {shown}." if shown else ""


def place_name(results: StudyResults, model: str | None, domain: str | None, task: str | None = None) -> str:
    """Name a model, domain and task, omitting those that are the same in the whole study."""
    parts = []
    if len(results.models) > 1:
        parts.append(model or "")
    if len(results.domains) > 1 or not task:
        parts.append(domain or "")
    if task and task != domain:
        parts.append(task)
    return " · ".join(parts) or domain or ""


def row_place(results: StudyResults, row: Row) -> str:
    """Name the model, domain and task of a row: see :func:`place_name`."""
    return place_name(results, row.model, row.domain, row.task)


def place_with_measure(results: StudyResults, row: Row) -> str:
    """Return :func:`row_place`, with the primary measure of the task where the tasks of the study have several."""
    several = len({score.metric for score in results.scores}) > 1
    name = row_place(results, row)
    return f"{name} ({metric_name(row.metric)})" if several and isinstance(row, TaskScores) else name


def primary_measures(results: StudyResults) -> str:
    """Name the primary measures with their tasks, such as "macro-F1 (on reviews and sst2) and F1 (on entities)"."""
    found: dict[str, dict[str, None]] = {}
    for row in results.scores:
        found.setdefault(metric_name(row.metric), {})[row.task] = None
    return joined([f"{name} (on {joined(list(tasks))})" if len(found) > 1 else name for name, tasks in found.items()])


def method_name(row: Row) -> str:
    """Return the name of a method, with the task if the model was adapted for a single task."""
    return f"{row.method}, {row.task}" if row.task else row.method


def describe_learning(learning: Learning, metric: str, where: str = "") -> str:
    """Return why the base model has not learned a task.

    Args:
        learning: Record of its fine-tuning.
        metric: The metric of the task.
        where: The task, as " on intent".
    """
    if learning.probe is not None and learning.is_below_probe:
        after, before = (f"{100 * value:.1f}" for value in (learning.probe.after, learning.probe.before))
        return (
            f"fine-tuning of the base model scores {after} {metric_name(metric)}{where}, less than a linear model of "
            f"its frozen states ({before}; difference {interval_text(learning.probe, 100)})"
        )
    return f"the training loss{where} still fell steeply at the end in {learning.falling} of {learning.seeds} runs"
