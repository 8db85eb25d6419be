"""Trainings that later runs start from, done once: what one leaves stays in the cache, under all that decided it."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.backbone.device import Precision, default_device
from acclimate.errors import first_line
from acclimate.files import new_folder, sweep
from acclimate.locks import POLL, Claim
from acclimate.tasks.kinds import Learner
from acclimate.tasks.loop import train
from acclimate.tasks.options import Options
from acclimate.training.run import cache_folder, cache_key, fingerprint_model
from acclimate.version import __version__

KEPT = 8
"""Trainings in the cache, each of the size of a model; of more, those that were not used for longest go."""
DECIDE = ("seed", "epochs", "learning_rate", "batch_size", "warmup", "weight_decay", "confidence_penalty")
"""Options on which the outcome depends, besides the weights, the rows and the precision."""

WEIGHTS = "model.safetensors"

log = logging.getLogger(__name__)


def train_once(learner: Learner, rows: list[dict[str, Any]], options: Options, precision: Precision) -> float:
    """Train a learner on rows, or give it the weights that an equal training left in the cache.

    Equal are trainings with the same weights, rows and options. Several processes may share the cache: one that finds
    another at the same training waits for it. The weights of the last epoch are kept, and torch's generator is left
    anywhere: seed it before what comes next.

    Args:
        learner: Trained in place.
        rows: Of the learner.
        options: Of the training; ``select`` is not heeded.
        precision: The resolved one.

    Returns:
        Seconds that the training took, now or when it was done.

    Raises:
        UserError: If the loss is not a number.
    """
    folder = cache_folder() / "trained" / _key(learner, rows, options, precision)
    with alone(folder):
        found = load_tensors(folder / WEIGHTS)
        if found is not None:
            weights, seconds = found
            with suppress(OSError):  # where nothing can be written nothing is tidied, either
                os.utime(folder)
            learner.model.load_state_dict(weights)
            return seconds
        started = time.perf_counter()
        train(learner.model, rows, learner.collate, options, precision, tokenizer=learner.tokenizer)
        seconds = time.perf_counter() - started
        with kept_if_possible("What was trained", folder):
            with new_folder(folder) as temporary:
                state = learner.model.state_dict()
                copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
                save_file(copies, temporary / WEIGHTS, {"seconds": f"{seconds:.3f}"})
            _tidy(folder.parent)
    return seconds


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is about to make a folder of the cache, and remove what killed ones left of it.

    Look for the folder inside the block, where whoever was quicker has finished.
    """
    claim = Claim(folder.parent / f".{folder.name}.claim")
    try:
        if not claim.take():
            log.warning("Waiting for another process that makes the same (%s).", claim.owner() or "unknown")
            while not claim.take():
                time.sleep(POLL)
    except OSError:  # where nothing can be written, nothing can be shared
        yield
        return
    sweep(folder)
    try:
        yield
    finally:
        claim.release()


def what_computes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, precision: Precision) -> dict[str, Any]:
    """Return what decides the numbers that a model gives for rows: itself, how they are padded, and the software."""
    return {
        "model": fingerprint_model(model),
        "padding": [tokenizer.padding_side, tokenizer.pad_token_id],
        "precision": [default_device().type, precision],
        "software": [__version__, torch.__version__, transformers.__version__],
    }


@contextmanager
def kept_if_possible(what: str, folder: Path) -> Iterator[None]:
    """Warn if the block cannot write: a full or read-only disk costs time later, not this run."""
    try:
        yield
    except OSError as error:
        log.warning("%s could not be kept in '%s': %s.", what, folder.parent, first_line(error))


def load_tensors(file: Path) -> tuple[dict[str, Tensor], float] | None:
    """Return the tensors of a file and the seconds that they took to make; None if it is absent or damaged."""
    try:
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dictionary
            return tensors, float((opened.metadata() or {})["seconds"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def hash_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Hash model inputs and targets."""
    digest = hashlib.sha256()
    for row in rows:
        for name, value in sorted(row.items()):
            array = np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _key(learner: Learner, rows: Sequence[dict[str, Any]], options: Options, precision: Precision) -> str:
    decides = {
        **what_computes(learner.model, learner.tokenizer, precision),
        "options": {name: getattr(options, name) for name in DECIDE},
        "rows": hash_rows(rows),
    }
    return cache_key(decides)


def _tidy(place: Path) -> None:
    """Remove the trainings that were not used for longest."""

    def used(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:  # another process was quicker
            return 0.0

    folders = [entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    for folder in sorted(folders, key=used, reverse=True)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
