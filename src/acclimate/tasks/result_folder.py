"""A finished fine-tuning or distillation is found again, so that the same call after a kill does nothing twice.

There are no checkpoints in the middle of it. The unit is the seed, as a cell is the unit of a study: it takes minutes,
a run of the same seed from its start ends with the same weights (on a CPU to the bit), and nothing that it holds in
memory (the weights of the best epoch, the optimiser of a connector, what was measured after each epoch) has to be
saved and believed. What is found is a whole folder, which appears by one rename, with a record of everything that
decided it.

The end of a fine-tuning, whatever it learnt from: measuring the model, and writing it with what was measured.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from acclimate.cards import write_task_model_card
from acclimate.device import Precision, default_device
from acclimate.evaluation.collapse import Collapse, find_collapse
from acclimate.evaluation.scoring import Scoring
from acclimate.files import atomic_folder, read_json, write_json
from acclimate.models import save_model
from acclimate.models.checkpoints import model_fingerprint
from acclimate.tasks.kinds import LabelledTask, Learner
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.result import FinetuneResult, write_result
from acclimate.tasks.trainer import TrainingResult
from acclimate.version import __version__

RECORD_FILE = "run.json"
ResultT = TypeVar("ResultT", bound=FinetuneResult)


def run_identity(
    verb: str,
    models: Mapping[str, str | Path],
    tasks: Mapping[str, LabelledTask | None],
    precision: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything that decides a result, as plain values.

    Args:
        verb: What is done.
        models: The models that are read, by their role; they are known by their content.
        tasks: The tasks, by their role.
        precision: The resolved one.
        options: All other options.

    Raises:
        UserError: If a model is not there.
    """
    told = {
        name: asdict(replace(value, precision=precision, progress=False))
        if isinstance(value, FinetuneOptions)
        else value
        for name, value in options.items()
    }
    values = {
        "verb": verb,
        "acclimate": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": default_device().type,
        "models": {role: model_fingerprint(str(model)) for role, model in models.items()},
        "tasks": {role: task and [task.name, task.fingerprint()] for role, task in tasks.items()},
        "precision": precision,
        "options": told,
    }
    return json.loads(json.dumps(values, default=str))


def load_matching_result(out: str | Path | None, decided: dict[str, Any], kind: type[ResultT]) -> ResultT | None:
    """Return the result that a folder holds if it is that of the same run; None if it is not, or there is none."""
    if out is None or not (Path(out) / "config.json").is_file():
        return None
    try:
        record = read_json(Path(out) / RECORD_FILE)
        return kind(**record["result"]) if record["decided_by"] == decided else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_run_record(folder: Path, decided: dict[str, Any], result: FinetuneResult) -> None:
    """Write the record of a run into its folder."""
    write_json(folder / RECORD_FILE, {"decided_by": decided, "result": asdict(result)})


log = logging.getLogger(__name__)


def evaluate_splits(
    learner: Learner,
    task: LabelledTask,
    trained: TrainingResult,
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
    if (only := find_collapse(test.gold, test.predicted)) is not None:
        warn_of_collapse(only, len(test.predicted), task.name, learner.readable)
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


def warn_of_collapse(only: Collapse, total: int, task: str, readable: Callable[[Any], Any]) -> None:
    """Say that a model gives nearly all of ``total`` items of a task the same answer."""
    log.warning(
        "A model gives %d of %d items of '%s' the same answer (%s): it has not learnt the task. Train it longer "
        "(epochs), at another learning_rate or on more examples.",
        only.items,
        total,
        task,
        readable(only.answer) or "none",
    )


def write_result_folder(
    out: Path,
    learner: Learner,
    trained: TrainingResult,
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
        decided: Everything that decided the result, see :mod:`acclimate.tasks.result_folder`.
    """
    with atomic_folder(out) as folder:
        save_model(learner.model, folder, out)
        learner.tokenizer.save_pretrained(folder)
        write_result(folder, result, learner.readable, trained.log)
        write_task_model_card(folder, out.name, verb, dict(models), task, dict(options), result)
        write_run_record(folder, decided, result)
