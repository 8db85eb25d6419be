"""Selective masking beside the other ways to mask: what is important to a task in a text that is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from acclimate.corpus import TokenDataset
from acclimate.device import choose_precision, default_device, preserve_rng_state, to_device
from acclimate.errors import UserError
from acclimate.masking import MASK_RATE, Masking, get
from acclimate.masking.preview import find_importance_store
from acclimate.masking.token_importance_store import TokenImportanceStore
from acclimate.models import attach, load_language_model
from acclimate.training.inputs import open_task
from acclimate.training.method import AdaptContext, Method
from acclimate.training.method import get as get_method

NAME = "selective"


def selective_masking(
    model: str | Path,
    rows: TokenDataset,
    task: Any,
    settings: Mapping[str, Any],
    *,
    seed: int,
    precision: str,
    progress: bool,
) -> tuple[Method, Masking, TokenImportanceStore, dict[str, Any]]:
    """Go through the stages of selective masking, or take them from the cache, where adaptations keep theirs.

    Args:
        model: The model that would be adapted.
        rows: The text.
        task: A task or its folder.
        settings: Parameters of the method.
        seed: Of the adaptation.
        precision: Of training and marking.
        progress: Show bars.

    Returns:
        The method, how it masks, the important tokens, and the account of the stages.

    Raises:
        UserError: If the task or a parameter cannot be used, or nothing in the text is important.
    """
    method = get_method(NAME, **settings)
    data = open_task(task)
    chosen = choose_precision(precision, default_device())
    with preserve_rng_state():
        torch.manual_seed(seed)  # of a head that the model lacks
        loaded = load_language_model(model)
    layers = attach(loaded.model)
    to_device(loaded.model)
    run = AdaptContext(loaded.model, layers, loaded.tokenizer, rows, get("random"), seed, chosen, progress, task=data)
    method.prepare(run)
    masking = method.masking(MASK_RATE)
    marks = find_importance_store(masking)
    if masking is None or marks is None:
        raise UserError(f"Method '{NAME}' gave no masking.")
    (account,) = run.accounts.values()
    return method, masking, marks, account
