"""Texts without some of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from acclimate.masking.base import Vocabulary
from acclimate.masking.spans import Rewriting


@dataclass(frozen=True)
class WithoutTokens(Rewriting):
    """The original text, certain tokens unseen: they count as padding, so nothing attends to them.

    Attributes:
        tokens: Their ids; they stand at the end of a text, so that the places of the others stay as they are.
    """

    tokens: tuple[int, ...]

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the tokens out of their texts."""
        return ids, np.where(np.isin(ids, self.tokens), -1, text)
