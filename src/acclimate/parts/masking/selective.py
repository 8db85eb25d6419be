"""Selective masking: the important tokens that a token classifier found in each text (Gu et al., EMNLP 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.parts.masking.base import Strategy, Vocabulary
from acclimate.parts.masking.rewriting import positions_by_text
from acclimate.parts.masking.token_importance_store import TokenImportanceStore


@dataclass(frozen=True)
class SelectiveMasking(Strategy):
    """Masks the important tokens of each text; ``rate`` is not used.

    In a text without important tokens nothing is predicted. The strategy is not registered: the method ``selective``
    makes it, since it needs the output of a token classifier.

    Attributes:
        store: The important tokens.
        cap: Maximum share of the ordinary tokens of a text to mask. The tokens with the highest scores are taken, and
            at least one if there is any. None masks every important token, as in the paper; the released code uses
            0.15.
    """

    name: ClassVar[str] = "selective"

    store: TokenImportanceStore = field(kw_only=True, compare=False, repr=False)
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cap(self.cap)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Look up the important tokens."""
        flat, free, leader = ids.ravel(), allowed.ravel(), np.full(ids.size, -1)
        for positions in positions_by_text(text):
            ranks = np.where(free[positions], self.store.lookup(flat[positions]), 0)
            most = len(positions) if self.cap is None else max(1, int(self.cap * int(free[positions].sum())))
            chosen = positions[(ranks > 0) & (ranks <= most)]
            leader[chosen] = chosen
        return leader.reshape(ids.shape)

    def identity(self) -> dict[str, Any]:
        """Return what determines the masking, except for the importance store, which has its own identity."""
        values = {"rate": self.rate, "mask": self.mask, "random": self.random, "cap": self.cap}
        return {"name": self.name, **values}


def check_cap(cap: float | None) -> None:
    """Check the maximum share of a text to mask.

    Raises:
        UserError: If it is out of range.
    """
    if cap is not None and not 0 < cap <= 1:
        raise UserError(f"cap must be above 0 and at most 1, not {cap}: it is a share of the tokens of a text.")
