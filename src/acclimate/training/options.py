"""The training budget, and checks of options against a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from acclimate.corpus import TokenDataset
from acclimate.errors import UserError
from acclimate.models import LanguageModel, longest_text
from acclimate.modules import add_virtual_tokens, virtual_ids
from acclimate.options.training import BUDGETS, MAX_SEED, TrainingOptions
from acclimate.training.method import Method


def check_seed(seed: int) -> None:
    """Check that a seed is in the range that all random number generators accept.

    Raises:
        UserError: If it is not.
    """
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed must be from 0 to {MAX_SEED:,}, not {seed:,}.")


@dataclass
class Budget:
    """How long to train: one of steps, epochs, tokens and minutes."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    max_minutes: float | None = None

    @classmethod
    def of(cls, options: TrainingOptions, default_epochs: float) -> Budget:
        """Return the budget that the options set; ``default_epochs`` epochs if they set none."""
        given = {name: getattr(options, name) for name in BUDGETS}
        return cls(**given) if any(value is not None for value in given.values()) else cls(epochs=default_epochs)

    def resolve(self, rows: TokenDataset, batch_size: int, appended: int = 0) -> int:
        """Return the number of optimizer steps; with a time budget, a number that is too high to be reached.

        Args:
            rows: The training text.
            batch_size: Texts per step.
            appended: Virtual tokens per row (see :mod:`acclimate.modules.virtual_tokens`).
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
    """Add the method's virtual tokens to model and tokenizer; return how many tokens they add to each text."""
    if method.virtual_tokens:
        loaded.tokenizer = add_virtual_tokens(
            loaded.model, loaded.tokenizer, method.virtual_tokens, start=method.virtual_start, seed=seed
        )
    return len(virtual_ids(loaded.tokenizer))


def check_length(loaded: LanguageModel, max_length: int) -> None:
    """Check that the model can read texts of ``max_length`` tokens.

    Raises:
        UserError: If it has fewer positions, or the texts would be shorter than 8 tokens.
    """
    if max_length < 8:
        raise UserError(f"max-length must be at least 8 tokens, not {max_length}.")
    positions = longest_text(loaded.model)
    if positions is not None and max_length > positions:
        raise UserError(f"max-length {max_length} is more than the {positions} positions of this model.")
