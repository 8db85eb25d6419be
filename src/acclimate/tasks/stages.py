"""The first of two stages of fine-tuning: another task of the same kind, whose outcome is kept for later runs.

TAPTER's results on BioASQ are made so (Nishida et al., 2021, after Wiese et al., 2017): first SQuAD, then BioASQ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from acclimate.backbone.device import Precision
from acclimate.errors import UserError
from acclimate.tasks.cached import train_once
from acclimate.tasks.kinds import LabelledTask, Learner, load_task
from acclimate.tasks.options import Options


@dataclass(frozen=True)
class First:
    """What is learnt in the first stage, and how."""

    task: LabelledTask
    options: Options


def first_stage(
    task: LabelledTask,
    options: Options,
    first: LabelledTask | str | Path | None,
    epochs: int | None,
    learning_rate: float | None,
) -> First | None:
    """Return what to learn before a task, or None.

    Args:
        task: The task of the second stage.
        options: Those of the second stage.
        first: The first task or its folder; None for none.
        epochs: Of the first stage; None: as in the second.
        learning_rate: The same.

    Raises:
        UserError: If the tasks do not fit together, or an option has no sense.
    """
    if first is None:
        for name, value in (("first_epochs", epochs), ("first_learning_rate", learning_rate)):
            if value is not None:
                raise UserError(f"{name} is given, but no first task; give one as 'first', or leave it out.")
        return None
    data: LabelledTask = load_task(first) if isinstance(first, str | Path) else first
    check_first(data, task)
    rate = options.learning_rate if learning_rate is None else learning_rate
    own = replace(options, epochs=options.epochs if epochs is None else epochs, learning_rate=rate, select="last")
    own.check(data.name, [own.metric], has_dev=False)
    return First(data, own)


def check_first(first: LabelledTask, task: LabelledTask) -> None:
    """Check that what is learnt from one task is of use for another.

    Raises:
        UserError: If they are of different kinds, or their labels differ.
    """
    if first.kind != task.kind:
        raise UserError(
            f"'{first.name}' is a task of the kind {first.kind} and '{task.name}' of {task.kind}: the first stage of "
            "fine-tuning needs a task of the same kind."
        )
    if list(first.labels) != list(task.labels):
        raise UserError(
            f"The labels of '{first.name}' ({', '.join(first.labels)}) are not those of '{task.name}' "
            f"({', '.join(task.labels)}), so its head could not go on; give a first task with the same labels."
        )


def learn_first(learner: Learner, task: LabelledTask, options: Options, precision: Precision) -> None:
    """Train a learner on the train split of a task, or take what an equal training left in the cache.

    Args:
        learner: For the task of the second stage; trained in place.
        task: That of the first stage.
        options: Those of the first stage.
        precision: The resolved one.

    Raises:
        UserError: If the loss is not a number.
    """
    train_once(learner, learner.rows(task.train), options, precision)
