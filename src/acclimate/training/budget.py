"""How long to train."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from acclimate.corpus import TokenRows
from acclimate.errors import UserError, check_positive


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

    def resolve(self, rows: TokenRows, batch_size: int, appended: int = 0) -> int:
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
