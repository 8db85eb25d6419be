"""Selective masking: the tokens that a token classifier found in each text (Gu et al., EMNLP 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.rewriting import positions_by_text
from acclimate.masking.token_importance_store import TokenImportanceStore


@dataclass(frozen=True)
class SelectiveMasking(Strategy):
    """Masks the important tokens of each text, all of them or the best; ``rate`` has no meaning.

    A text without any important token is read, but nothing of it is predicted. It needs marks, so that no user names
    it: the method ``selective`` makes it.

    Attributes:
        marks: The important tokens.
        cap: Largest share of the ordinary tokens of a text that is masked: the best by score, but one at least where
            there is any. None masks every important token, as the paper does; the released code has 0.15.
    """

    name: ClassVar[str] = "selective"

    marks: TokenImportanceStore = field(kw_only=True, compare=False, repr=False)
    cap: float | None = None

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            UserError: If one is out of range.
        """
        super().__post_init__()
        check_cap(self.cap)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Look the important tokens up."""
        flat, free, leader = ids.ravel(), allowed.ravel(), np.full(ids.size, -1)
        for place in positions_by_text(text):
            ranks = np.where(free[place], self.marks.of(flat[place]), 0)
            most = len(place) if self.cap is None else max(1, int(self.cap * int(free[place].sum())))
            chosen = place[(ranks > 0) & (ranks <= most)]
            leader[chosen] = chosen
        return leader.reshape(ids.shape)

    def identity(self) -> dict[str, Any]:
        """Return what decides what is masked, but for the marks, which other things decide."""
        values = {"rate": self.rate, "mask": self.mask, "random": self.random, "cap": self.cap}
        return {"name": self.name, **values}


def check_cap(cap: float | None) -> None:
    """Check the largest share of a text that is masked.

    Raises:
        UserError: If it is none.
    """
    if cap is not None and not 0 < cap <= 1:
        raise UserError(f"cap={cap} is a share of the tokens of a text: above 0 and at most 1.")
