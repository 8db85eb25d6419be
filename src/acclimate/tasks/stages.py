"""The first of two stages of fine-tuning: another task of the same kind, whose outcome is kept for later runs.

TAPTER's results on BioASQ are made so (Nishida et al., 2021, after Wiese et al., 2017): first SQuAD, then BioASQ.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from acclimate.backbone.device import Precision, default_device
from acclimate.errors import UserError, first_line
from acclimate.files import new_folder
from acclimate.tasks.kinds import LabelledTask, Learner, load_task
from acclimate.tasks.loop import train
from acclimate.tasks.options import Options
from acclimate.training.run import cache_folder, fingerprint_weights

KEPT = 8
"""First stages in the cache, each of the size of a model; of more, those that were not used for longest go."""

log = logging.getLogger(__name__)


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
    """Train a learner on the train split of a task, or give it the weights that an equal training left in the cache.

    Equal are trainings with the same weights, rows and options. Files appear whole or not at all, so several
    processes may share the cache; two that start at once both train.

    Args:
        learner: For the task of the second stage; trained in place.
        task: That of the first stage.
        options: Those of the first stage.
        precision: The resolved one.

    Raises:
        UserError: If the loss is not a number.
    """
    rows = learner.rows(task.train)
    folder = cache_folder() / "first-stage" / _key(learner, rows, options, precision)
    weights = _found(folder)
    if weights is not None:
        learner.model.load_state_dict(weights)
        return
    train(learner.model, rows, learner.collate, options, precision, tokenizer=learner.tokenizer)
    try:
        with new_folder(folder) as temporary:
            state = learner.model.state_dict()
            copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
            save_file(copies, temporary / "model.safetensors")
        _tidy(folder.parent)
    except OSError as error:  # a full or read-only disk costs time later, not this run
        log.warning("The first stage of fine-tuning could not be kept in '%s': %s.", folder.parent, first_line(error))


def _key(learner: Learner, rows: Sequence[dict[str, Any]], options: Options, precision: Precision) -> str:
    """Hash all that decides what the training leaves."""
    names = ("seed", "epochs", "learning_rate", "batch_size", "warmup", "weight_decay", "confidence_penalty")
    decides = [
        *(getattr(options, name) for name in names),
        precision,
        default_device().type,
        torch.__version__,
        fingerprint_weights(learner.model),
    ]
    digest = hashlib.sha256(json.dumps(decides).encode())
    for row in rows:
        for name, value in sorted(row.items()):
            array = np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:24]


def _found(folder: Path) -> dict[str, Tensor] | None:
    try:
        weights = load_file(folder / "model.safetensors")
        os.utime(folder)
    except (OSError, SafetensorError):  # absent, or another process is just tidying up
        return None
    return weights


def _tidy(place: Path) -> None:
    """Remove the first stages that were not used for longest."""

    def used(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:  # another process was quicker
            return 0.0

    folders = [entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    for folder in sorted(folders, key=used, reverse=True)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
