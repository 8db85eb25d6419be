"""Static masking: what becomes of a text is drawn once, as in a corpus that is masked before the training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acclimate.masking.base import IGNORED, Masking, Vocabulary
from acclimate.masking.marks import text_hash
from acclimate.masking.spans import texts_of


@dataclass(frozen=True)
class StaticMasking:
    """Masks a text the same way whenever it is read: all chance comes from a seed and the content of the text.

    Attributes:
        of: How texts are masked.
        seed: Of the run.
    """

    of: Masking
    seed: int = 0

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Corrupt each text by itself; see :class:`acclimate.masking.Masking`."""
        flat, free = ids.ravel(), allowed.ravel()
        corrupted, labels = flat.copy(), np.full(flat.shape, IGNORED, dtype=flat.dtype)
        for place in texts_of(text):
            words = flat[None, place]
            chance = np.random.default_rng([self.seed, text_hash(words[0])])
            new = self.of(words, np.zeros_like(words), free[None, place], vocabulary, chance)
            corrupted[place], labels[place] = new[0][0], new[1][0]
        return corrupted.reshape(ids.shape), labels.reshape(ids.shape)
