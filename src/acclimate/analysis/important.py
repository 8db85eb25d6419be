"""Selective masking beside the other ways to mask: what is important to a task in a text that is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from acclimate.backbone import attach, load_masked_lm
from acclimate.backbone.device import choose_precision, default_device, forked_chance, to_device
from acclimate.corpus import TokenRows
from acclimate.errors import UserError
from acclimate.masking import MASK_RATE, Masking, get
from acclimate.masking.marks import Marks
from acclimate.masking.preview import marks_of
from acclimate.training.method import Method
from acclimate.training.method import get as get_method
from acclimate.training.run import Run
from acclimate.training.texts import open_task

NAME = "selective"


def selective_masking(
    model: str | Path,
    rows: TokenRows,
    task: Any,
    settings: Mapping[str, Any],
    *,
    seed: int,
    precision: str,
    progress: bool,
) -> tuple[Method, Masking, Marks, dict[str, Any]]:
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
    with forked_chance():
        torch.manual_seed(seed)  # of a head that the model lacks
        loaded = load_masked_lm(model)
    layers = attach(loaded.model)
    to_device(loaded.model)
    run = Run(loaded.model, layers, loaded.tokenizer, rows, get("random"), seed, chosen, progress, task=data)
    method.prepare(run)
    masking = method.masking(MASK_RATE)
    marks = marks_of(masking)
    if masking is None or marks is None:
        raise UserError(f"Method '{NAME}' gave no masking.")
    (account,) = run.accounts.values()
    return method, masking, marks, account
