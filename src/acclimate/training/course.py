"""Checks of the numbers that shape the course of a training."""

from __future__ import annotations

from typing import get_args

from acclimate.errors import UserError, check_not_negative, check_positive, unknown
from acclimate.training.batches import Layout


def check_course(seed: int, warmup: float, weight_decay: float, layout: str, save_every: int | None) -> None:
    """Check what a training would otherwise misunderstand without a word, or find out in its first step.

    Args:
        seed: Of the run.
        warmup: Share of the training in which the learning rate rises.
        weight_decay: Of AdamW.
        layout: Of rows.
        save_every: Steps between checkpoints, None if they come by time.

    Raises:
        UserError: If one has no sense.
    """
    check_seed(seed)
    if not 0 <= warmup < 1:
        raise UserError(f"warmup is a share of the training, from 0 to below 1, not {warmup:g}.")
    check_not_negative(weight_decay=weight_decay)
    if layout not in get_args(Layout):
        raise unknown("layout", layout, get_args(Layout))
    if save_every is not None:
        check_positive(save_every=save_every)


def check_seed(seed: int) -> None:
    """Check that every generator takes a seed.

    Raises:
        UserError: If one would not.
    """
    if not 0 <= seed < 2**32:
        raise UserError(f"seed must be from 0 to {2**32 - 1:,}, not {seed:,}.")
