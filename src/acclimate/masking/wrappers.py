"""The control: as many tokens of each text as another strategy masks, but any tokens.

Static masking: what becomes of a text is drawn once, as in a corpus that is masked before the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from acclimate.masking.base import IGNORE_INDEX, Masking, Strategy, Vocabulary, get, register
from acclimate.masking.random import WholeWordMasking
from acclimate.masking.rewriting import positions_by_text
from acclimate.masking.token_importance_store import hash_text


@register("random-same-count", summary="as many tokens of each text as another strategy masks, at random: a control")
@dataclass(frozen=True)
class RandomSameCount(Strategy):
    """As many tokens of each text as another strategy chooses, drawn at random, with its shares of fates.

    A comparison with plain random masking mixes up which tokens are masked with how many of each text are; this one
    does not. Make it with :meth:`like`; by name, ``of`` names the other strategy, and all other parameters are its.

    Attributes:
        of: The other strategy.
    """

    of: Masking = field(default_factory=WholeWordMasking)

    @classmethod
    def like(cls, other: Masking) -> RandomSameCount:
        """Return the control of a strategy; of a masking that is none, with the usual shares of fates."""
        if isinstance(other, Strategy):
            return cls(other.rate, other.mask, other.random, other)
        return cls(of=other)

    @classmethod
    def build(cls, rate: float, settings: Mapping[str, Any]) -> Self:
        """Make it from what a user gave: ``of`` and the parameters of the strategy that it names.

        Raises:
            UserError: If these do not fit.
        """
        own = dict(settings)
        other = get(str(own.pop("of", WholeWordMasking.name)), rate, **own)
        return cls(rate, other.mask, other.random, other)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        if isinstance(self.of, Strategy):
            others = self.of.choose(ids, text, allowed, vocabulary, rng) >= 0
        else:
            others = self.of(ids, text, allowed, vocabulary, rng)[1] != IGNORE_INDEX
        place = np.flatnonzero(allowed)
        number = text.ravel()[place]
        wanted = np.bincount(number, others.ravel()[place], minlength=1)
        order = np.lexsort((rng.random(len(place)), number))
        # Places come text by text, so the rank within a text is the distance from its first token.
        rank = np.arange(len(place)) - np.searchsorted(number, number)
        leader = np.full(ids.shape, -1)
        taken = place[order[rank < wanted[number]]]
        leader.ravel()[taken] = taken
        return leader

    def identity(self) -> dict[str, Any]:
        """Return what decides what is masked; of another masking than our strategies only its representation."""
        other = self.of.identity() if isinstance(self.of, Strategy) else repr(self.of)
        return {"name": self.name, "rate": self.rate, "mask": self.mask, "random": self.random, "of": other}


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
        corrupted, labels = flat.copy(), np.full(flat.shape, IGNORE_INDEX, dtype=flat.dtype)
        for place in positions_by_text(text):
            words = flat[None, place]
            chance = np.random.default_rng([self.seed, hash_text(words[0])])
            new = self.of(words, np.zeros_like(words), free[None, place], vocabulary, chance)
            corrupted[place], labels[place] = new[0][0], new[1][0]
        return corrupted.reshape(ids.shape), labels.reshape(ids.shape)
