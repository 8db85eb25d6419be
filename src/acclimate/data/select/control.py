"""Documents at random, the control of every other selection, and selections of a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.ranking import content_order
from acclimate.data.operations import Context, Operation, register
from acclimate.data.pool import Documents
from acclimate.results.adaptations import OperationAccount

SAME = "same"
"""The number of tokens of a control: as many as the selection it is compared with has."""


@dataclass(frozen=True)
class Budget(Operation):
    """An operation that takes documents in some order until there are enough.

    Attributes:
        tokens: Number of tokens to keep; the last document is the one with which the sum is nearest.
        documents: Number of documents to keep.
        share: Share of the tokens to keep.
    """

    tokens: int | None = None
    documents: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        given = {
            name: value for name in ("tokens", "documents", "share") if (value := getattr(self, name)) is not None
        }
        if len(given) > 1:
            raise UserError(f"Selection '{self.name}': give one of tokens, documents and share, not {len(given)}.")
        for name, value in given.items():
            if isinstance(value, int | float) and not (0 < value <= 1 if name == "share" else value >= 1):
                expected = "above 0 and at most 1" if name == "share" else "at least 1"
                raise UserError(f"Selection '{self.name}': {name} must be {expected}, not {value:g}.")

    def fill(self, order: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the first of some positions, as many as the budget holds; all without a budget.

        Args:
            order: Positions of documents, the best first (positions,).
            tokens: Number of tokens of every document (documents,).
        """
        if self.documents is not None:
            return order[: self.documents]
        limit = self.tokens if self.share is None else self.share * int(tokens.sum())
        return order if limit is None else fill_tokens(order, tokens, float(limit))


def fill_tokens(order: np.ndarray, tokens: np.ndarray, limit: float) -> np.ndarray:
    """Return the first of some positions, at least one, with the number of tokens that is nearest to ``limit``."""
    total = np.cumsum(tokens[order])
    count = int(np.searchsorted(total, limit))  # the documents before the one that reaches the limit
    if count < len(order) and (count == 0 or total[count] - limit <= limit - total[count - 1]):
        count += 1
    return order[:count]


@register("random", summary="documents at random: the control, with as many tokens as the selection it replaces")
@dataclass(frozen=True)
class Random(Budget):
    """Keeps documents at random.

    Attributes:
        tokens: Number of tokens to keep, or ``"same"``: as many as the selection that it is the control of. That is
            the default.
        seed: Random seed.
    """

    main: ClassVar[str] = "tokens"
    tokens: int | str | None = None  # type: ignore[assignment]
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.tokens, str):
            if self.tokens != SAME:
                raise UserError(f"Selection 'random': tokens must be a whole number or '{SAME}', not '{self.tokens}'.")
        else:
            super().__post_init__()

    @property
    def is_control(self) -> bool:
        """Whether the number of tokens comes from another selection."""
        return self.tokens == SAME or (self.tokens is None and self.documents is None and self.share is None)

    def apply(self, documents: Documents, context: Context) -> Documents:
        """Draw the documents, and keep the order in which they are in the corpus.

        Raises:
            UserError: If there is no selection to have as many tokens as.
        """
        if self.is_control:
            raise UserError(
                "Selection 'random' has no size here: give it tokens, documents or share, or use it as the control of "
                "another selection."
            )
        return documents.take(np.sort(self.fill(content_order(documents, self.seed), documents.tokens)))


def match_control(
    own: Sequence[Operation], compared: Sequence[Operation], accounts: Sequence[OperationAccount]
) -> list[Operation]:
    """Return operations in which ``random`` without a size keeps as many tokens as another selection.

    ``random`` alone is the whole control: documents at random after the same removal of duplicates and the like.

    Args:
        own: The operations.
        compared: The operations of the other selection.
        accounts: Their accounts.

    Raises:
        UserError: If the size of ``random`` is missing, and there is no other selection.
    """
    ranked = [number for number, one in enumerate(compared) if not one.stays_in_control]
    controls = [one for one in own if isinstance(one, Random) and one.is_control]
    if not controls or not ranked:
        return list(own)
    sized = [replace(one, tokens=accounts[ranked[-1]].tokens_out) if one in controls else one for one in own]
    if len(own) > 1:
        return sized
    before = [one for one in compared[: ranked[0]] if one.stays_in_control]
    after = [one for one in compared[ranked[0] :] if one.stays_in_control]
    return [*before, *sized, *after]
