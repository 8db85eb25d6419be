"""Checks of the numbers that shape the course of a training.

How long to train.

How many tokens a text may have.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import get_args

from acclimate.corpus import TokenDataset
from acclimate.errors import UserError, check_not_negative, check_positive, unknown_name_error
from acclimate.models import LanguageModel, longest_text
from acclimate.modules import add_virtual_tokens, virtual_ids
from acclimate.training.batches import Layout
from acclimate.training.method import Method


def check_hyperparameters(seed: int, warmup: float, weight_decay: float, layout: str, save_every: int | None) -> None:
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
        raise unknown_name_error("layout", layout, get_args(Layout))
    if save_every is not None:
        check_positive(save_every=save_every)


def check_seed(seed: int) -> None:
    """Check that every generator takes a seed.

    Raises:
        UserError: If one would not.
    """
    if not 0 <= seed < 2**32:
        raise UserError(f"seed must be from 0 to {2**32 - 1:,}, not {seed:,}.")


@dataclass
class Budget:
    """How long to train: exactly one of steps, epochs, tokens and minutes."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    max_minutes: float | None = None

    @classmethod
    def of(
        cls, steps: int | None, epochs: float | None, tokens: int | None, max_minutes: float | None, usual: float
    ) -> Budget:
        """Make a budget of what was given; of ``usual`` epochs where nothing was."""
        nothing = (steps, epochs, tokens, max_minutes) == (None, None, None, None)
        return cls(steps, usual if nothing else epochs, tokens, max_minutes)

    def __post_init__(self) -> None:
        """Check that at most one of the four is given, and positive.

        Raises:
            UserError: If several are given, or one is not a finite number of more than zero.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            self.epochs = 1
        elif len(given) > 1:
            raise UserError(f"Give one of steps, epochs, tokens and max-minutes, not {' and '.join(given)}.")
        check_positive(**given)

    def resolve(self, rows: TokenDataset, batch_size: int, appended: int = 0) -> int:
        """Return the number of optimiser steps; under a time budget a number that will not be reached.

        Args:
            rows: The text.
            batch_size: Texts a step.
            appended: Tokens of each row that are no text (see :mod:`acclimate.modules.virtual_tokens`).
        """
        per_step = batch_size * (rows.tokens / len(rows) - appended)
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return max(1, round(self.tokens / per_step))
        if self.epochs is not None:
            return max(1, math.ceil(self.epochs * len(rows) / batch_size))
        return 10_000_000


def add_method_virtual_tokens(loaded: LanguageModel, method: Method, seed: int) -> int:
    """Give model and tokenizer the virtual tokens that the method wants; return by how much texts are longer."""
    if method.virtual_tokens:
        loaded.tokenizer = add_virtual_tokens(
            loaded.model, loaded.tokenizer, method.virtual_tokens, start=method.virtual_start, seed=seed
        )
    return len(virtual_ids(loaded.tokenizer))


def check_length(loaded: LanguageModel, max_length: int) -> None:
    """See that the model can read texts of ``max_length`` tokens.

    Raises:
        UserError: If it cannot, or there is no sense in texts so short.
    """
    if max_length < 8:
        raise UserError(f"max-length must be at least 8 tokens, not {max_length}.")
    room = longest_text(loaded.model)
    if room is not None and max_length > room:
        raise UserError(f"max-length {max_length} is more than the {room} positions of this model.")
