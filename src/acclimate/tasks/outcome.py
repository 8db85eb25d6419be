"""The end of a fine-tuning, whatever it learnt from: measuring the model, and writing it with what was measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from acclimate.backbone import save_model
from acclimate.backbone.device import Precision
from acclimate.cards import write_learnt_card
from acclimate.evaluation.one_answer import OneAnswer, one_answer
from acclimate.evaluation.scoring import Scoring
from acclimate.files import new_folder
from acclimate.tasks.finished import keep
from acclimate.tasks.kinds import LabelledTask, Learner
from acclimate.tasks.loop import Trained
from acclimate.tasks.result import FinetuneResult, write_result

log = logging.getLogger(__name__)


def measured(
    learner: Learner,
    task: LabelledTask,
    trained: Trained,
    *,
    precision: Precision,
    scoring: Scoring,
    seed: int,
    train_size: int,
    started: float,
) -> dict[str, Any]:
    """Measure what was learnt on dev and test; return the fields that every result has.

    Args:
        learner: The model as it is now.
        task: What it learnt.
        trained: What the loop did.
        precision: The resolved one.
        scoring: Of the test split.
        seed: Of the run.
        train_size: Examples that were trained on.
        started: When the run began, on the clock of ``time.perf_counter``.
    """
    dev_metrics = learner.measure("dev", precision).metrics if task.dev else None
    test = learner.measure("test", precision)
    if (only := one_answer(test.gold, test.predicted)) is not None:
        warn_of_one_answer(only, len(test.predicted), task.name, learner.readable)
    return {
        "task": task.name,
        "seed": seed,
        "metrics": test.metrics,
        "dev_metrics": dev_metrics,
        "gold": test.gold,
        "predicted": test.predicted,
        "probabilities": test.probabilities,
        "labels": list(task.labels),
        "seconds": time.perf_counter() - started,
        "train_size": train_size,
        "steps": trained.steps,
        "epoch": trained.epoch,
        "train_loss": trained.loss,
        "precision": precision,
        "kind": task.kind,
        "scoring": scoring.details(),
    }


def warn_of_one_answer(only: OneAnswer, total: int, task: str, readable: Callable[[Any], Any]) -> None:
    """Say that a model gives nearly all of ``total`` items of a task the same answer."""
    log.warning(
        "A model gives %d of %d items of '%s' the same answer (%s): it has not learnt the task. Train it longer "
        "(epochs), at another learning_rate or on more examples.",
        only.items,
        total,
        task,
        readable(only.answer) or "none",
    )


def write_learnt(
    out: Path,
    learner: Learner,
    trained: Trained,
    result: FinetuneResult,
    *,
    verb: str,
    models: Mapping[str, str],
    task: LabelledTask,
    options: Mapping[str, Any],
    decided: dict[str, Any],
) -> None:
    """Write the model folder: weights, tokenizer, results, card, and the record by which it is found again.

    Args:
        out: Folder to make.
        learner: The model.
        trained: What the loop did.
        result: What was measured.
        verb: What was done.
        models: The models that were read, by their role.
        task: What was learnt.
        options: All that the card tells of the training.
        decided: Everything that decided the result, see :mod:`acclimate.tasks.finished`.
    """
    with new_folder(out) as folder:
        save_model(learner.model, folder, out)
        learner.tokenizer.save_pretrained(folder)
        write_result(folder, result, learner.readable, trained.log)
        write_learnt_card(folder, out.name, verb, dict(models), task, dict(options), result)
        keep(folder, decided, result)
