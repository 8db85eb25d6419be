"""A cache of trained weights that later runs start from; the key covers everything that determines them."""

from __future__ import annotations

import hashlib
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

from acclimate.adaptation.method import cache_key, fingerprint_model
from acclimate.base.device import Precision, default_device
from acclimate.base.files import atomic_folder, cache_folder, remove_leftovers, warn_on_write_error
from acclimate.base.locks import Claim
from acclimate.base.options import recorded
from acclimate.base.version import __version__
from acclimate.tasks.interfaces import Learner, ResolvedOptions
from acclimate.tasks.trainer import train

MAX_CACHED_TRAININGS = 8
"""Maximum trainings in the cache, each of the size of a model; the least recently used are removed."""
IN_ROWS = ("max_length", "few_shot", "negative", "select", "metric", "precision")
"""Options that the key has resolved or in the rows, or that only evaluate."""
WEIGHTS_FILE = "model.safetensors"
WORK_SUFFIX = ".work"
MAX_WORK_AGE = 7 * 24 * 3600
"""Seconds after which the checkpoints of a killed training are removed."""


def load_or_train(
    learner: Learner, rows: Sequence[dict[str, Any]], options: ResolvedOptions, precision: Precision
) -> float:
    """Train a learner on rows, or load the weights that an identical training left in the cache.

    Trainings are identical if initial weights, rows, options, precision and software are. Processes that share the
    cache wait for each other's identical trainings. The weights of the last epoch are kept. An interrupted training
    resumes from its checkpoints in the cache. The state of torch's generator is undefined after the call, so seed it
    again.

    Args:
        learner: The model, which is trained in place.
        rows: Rows of the learner.
        options: Options of the training; ``select`` is ignored.
        precision: The resolved precision.

    Returns:
        Seconds that the training took, now or when it was cached.

    Raises:
        UserError: If the loss becomes NaN or infinite.
    """
    folder = cache_folder() / "trained" / _training_key(learner, rows, options, precision)
    with cache_lock(folder):
        found = load_tensors(folder / WEIGHTS_FILE)
        if found is not None:
            weights, seconds = found
            with suppress(OSError):  # nothing is evicted from a read-only cache
                os.utime(folder)
            learner.head.model.load_state_dict(weights)
            return seconds
        started = time.perf_counter()
        work = folder.with_name(f".{folder.name}{WORK_SUFFIX}")
        train(learner.head, rows, options, precision, work=work if _is_writable(work) else None)
        seconds = time.perf_counter() - started
        with warn_on_write_error("A training", folder):
            with atomic_folder(folder) as temporary:
                state = learner.head.model.state_dict()
                copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
                save_file(copies, temporary / WEIGHTS_FILE, {"seconds": f"{seconds:.3f}"})
            _evict_oldest(folder.parent)
        shutil.rmtree(work, ignore_errors=True)
    return seconds


@contextmanager
def cache_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process is writing a folder of the cache, and remove what killed processes left of it.

    Check inside the block whether the folder exists, since another process may have finished it.
    """
    claim = Claim(folder.parent / f".{folder.name}.claim")
    try:
        claim.wait("another process that computes the same result")
    except OSError:  # a read-only cache cannot be shared
        yield
        return
    remove_leftovers(folder)
    try:
        yield
    finally:
        claim.release()


def computation_key(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, precision: Precision
) -> dict[str, Any]:
    """Return what determines the outputs of a model: the model itself, padding, device, precision and software."""
    return {
        "model": fingerprint_model(model),
        "padding": [tokenizer.padding_side, tokenizer.pad_token_id],
        "precision": [default_device().type, precision],
        "software": [__version__, torch.__version__, transformers.__version__],
    }


def load_tensors(file: Path) -> tuple[dict[str, Tensor], float] | None:
    """Return the tensors of a file and the seconds that they took to compute; None if it is missing or damaged."""
    try:
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is not a dictionary
            return tensors, float((opened.metadata() or {})["seconds"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def hash_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Return the SHA-256 of model inputs and targets."""
    digest = hashlib.sha256()
    for row in rows:
        for name, value in sorted(row.items()):
            array = np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _training_key(
    learner: Learner, rows: Sequence[dict[str, Any]], options: ResolvedOptions, precision: Precision
) -> str:
    decides = {
        **computation_key(learner.head.model, learner.head.tokenizer, precision),
        "options": recorded(options, IN_ROWS),
        "rows": hash_rows(rows),
    }
    return cache_key(decides)


def _is_writable(folder: Path) -> bool:
    """Create a folder, and return whether that was possible; a read-only cache only slows later runs down."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _evict_oldest(place: Path) -> None:
    """Remove the trainings that have not been used for longest, and old checkpoints of killed ones."""

    def used(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:  # another process removed it
            return 0.0

    folders = [entry for entry in place.iterdir() if entry.is_dir()]
    finished = sorted((entry for entry in folders if not entry.name.startswith(".")), key=used, reverse=True)
    killed = [
        entry for entry in folders if entry.name.endswith(WORK_SUFFIX) and time.time() - used(entry) > MAX_WORK_AGE
    ]
    for folder in [*finished[MAX_CACHED_TRAININGS:], *killed]:
        shutil.rmtree(folder, ignore_errors=True)
