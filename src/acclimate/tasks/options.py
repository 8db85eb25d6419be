"""The options of one training on a labelled task, with every default filled in."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

from acclimate.errors import UserError, unknown_name_error
from acclimate.evaluation.scoring import Scoring
from acclimate.options import Option, SupervisedOptions, options, values
from acclimate.options.training import Count


@options
class ResolvedOptions(SupervisedOptions):
    """The options that trainer and learners read: those of a command, with the defaults of the task filled in."""

    _: KW_ONLY
    max_length: Annotated[Count, Option("Maximum tokens per example, or per window of a passage.")]
    metric: Annotated[str, Option("Metric that selects the best epoch on the dev split.")]
    negative: Annotated[tuple[str, ...], Option("Labels that mean 'none of these'.")] = ()


def resolve_options(given: SupervisedOptions, task: Any) -> tuple[ResolvedOptions, Scoring]:
    """Fill in the defaults of a task, and check the options against it.

    Args:
        given: The options of ``finetune`` or ``distill``.
        task: The task (:class:`acclimate.tasks.LabelledTask`).

    Returns:
        The options, and how predictions on the test split are scored.

    Raises:
        UserError: If the task has no such metric or label, or lacks the dev split or the classes that an option needs.
    """
    negative = tuple(given.negative or ())
    scoring = task.scoring(negative=negative)
    resolved = ResolvedOptions(
        **values(given, SupervisedOptions)
        | {
            "max_length": task.default_length if given.max_length is None else given.max_length,
            "metric": scoring.metrics[0] if given.metric is None else given.metric,
            "negative": negative,
        }
    )
    if given.select == "dev" and not task.dev:
        raise UserError(f"'select' is 'dev', but the task '{task.name}' has no dev split; use 'last'.")
    metrics = (task.scoring("dev", negative) if given.select == "dev" else scoring).metrics
    if resolved.metric not in metrics:
        raise unknown_name_error("metric", resolved.metric, metrics)
    if given.confidence_penalty and not task.labels:
        raise UserError(f"'confidence_penalty' does not apply to the task '{task.name}', which has no classes.")
    return resolved, scoring
