"""Random token masking, as BERT does it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.registry import register


@register("random", paper="Devlin et al., NAACL 2019", summary="each token by itself, with the same probability")
@dataclass(frozen=True)
class RandomMasking(Strategy):
    """Each allowed token is chosen with probability ``rate``, independently (Devlin et al., 2019)."""

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose each token for itself."""
        chosen = allowed & (rng.random(ids.shape) < self.rate)
        return np.where(chosen, np.arange(ids.size).reshape(ids.shape), -1)
