"""Random token masking, as BERT does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

IGNORED = -100
"""The label of a position that no loss reads."""


class Masking(Protocol):
    """A way to choose and corrupt tokens."""

    def __call__(
        self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return corrupted ids and labels, both of the shape of ``ids``; see :class:`RandomMasking`."""
        ...


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer: the mask token, and the ids that may stand in at random."""

    mask_id: int
    ordinary: np.ndarray
    """Every id that is not a special token: a random padding token would shift RoBERTa's positions."""


@dataclass(frozen=True)
class RandomMasking:
    """Each allowed token is chosen with probability ``rate``, independently (Devlin et al., 2019).

    Attributes:
        rate: Share of tokens that are chosen.
        mask: Share of the chosen that become the mask token.
        random: Share of the chosen that become a random ordinary token; the rest stay as they are.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __call__(
        self, ids: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Corrupt token ids.

        Args:
            ids: Token ids, any shape.
            allowed: True where a token may be chosen (neither padding nor special), same shape.
            vocabulary: The mask token and the ordinary ids.
            rng: Source of chance.

        Returns:
            The corrupted ids, and the labels: the original id where chosen, else :data:`IGNORED`.
        """
        chosen = allowed & (rng.random(ids.shape) < self.rate)
        labels = np.where(chosen, ids, IGNORED)
        fate = rng.random(ids.shape)
        corrupted = np.where(chosen & (fate < self.mask), vocabulary.mask_id, ids)
        replaced = chosen & (fate >= self.mask) & (fate < self.mask + self.random)
        corrupted[replaced] = rng.choice(vocabulary.ordinary, int(replaced.sum()))
        return corrupted, labels
