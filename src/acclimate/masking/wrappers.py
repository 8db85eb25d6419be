"""Maskings that wrap other maskings: a count-matched random control, and static masking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from acclimate.masking.base import IGNORE_INDEX, Masking, Strategy, Vocabulary, get, register
from acclimate.masking.rewriting import positions_by_text
from acclimate.masking.token_importance_store import hash_text
from acclimate.masking.whole_word import WholeWordMasking


@register("random-same-count", summary="as many tokens of each text as another strategy, at random: a control")
@dataclass(frozen=True)
class RandomSameCount(Strategy):
    """Chooses as many tokens of each text as another strategy does, at random, and replaces them in the same way.

    A comparison with plain random masking confounds which tokens are masked with how many; this control does not. Make
    it with :meth:`matching`. By name, ``of`` is the name of the other strategy, and all other parameters are passed to
    it.

    Attributes:
        of: The other strategy.
    """

    of: Masking = field(default_factory=WholeWordMasking)

    @classmethod
    def matching(cls, other: Masking) -> RandomSameCount:
        """Return the control of another masking, with its replacement shares, or the default ones if it has none."""
        if isinstance(other, Strategy):
            return cls(other.rate, other.mask, other.random, other)
        return cls(of=other)

    @classmethod
    def build(cls, rate: float, settings: Mapping[str, Any]) -> Self:
        """Make the control from ``of``, the name of the other strategy, and its parameters.

        Raises:
            UserError: If a parameter is unknown, or a value does not fit.
        """
        parameters = dict(settings)
        other = get(str(parameters.pop("of", WholeWordMasking.name)), rate, **parameters)
        return cls(rate, other.mask, other.random, other)

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        if isinstance(self.of, Strategy):
            chosen_by_other = self.of.choose(ids, text, allowed, vocabulary, rng) >= 0
        else:
            chosen_by_other = self.of(ids, text, allowed, vocabulary, rng)[1] != IGNORE_INDEX
        positions = np.flatnonzero(allowed)
        number = text.ravel()[positions]
        counts = np.bincount(number, chosen_by_other.ravel()[positions], minlength=1)
        order = np.lexsort((rng.random(len(positions)), number))
        # Positions are sorted by text, so the rank within a text is the distance from its first token.
        rank = np.arange(len(positions)) - np.searchsorted(number, number)
        leader = np.full(ids.shape, -1)
        chosen = positions[order[rank < counts[number]]]
        leader.ravel()[chosen] = chosen
        return leader

    def identity(self) -> dict[str, Any]:
        """Return what determines the masking; an unregistered other masking is represented by its ``repr``."""
        other = self.of.identity() if isinstance(self.of, Strategy) else repr(self.of)
        return {"name": self.name, "rate": self.rate, "mask": self.mask, "random": self.random, "of": other}


@dataclass(frozen=True)
class StaticMasking:
    """Masks a text the same way every time: the random draws depend only on the seed and the content of the text.

    Attributes:
        of: The masking to apply.
        seed: Random seed.
    """

    of: Masking
    seed: int = 0

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask each text separately; see :class:`acclimate.masking.Masking`."""
        flat, free = ids.ravel(), allowed.ravel()
        corrupted, labels = flat.copy(), np.full(flat.shape, IGNORE_INDEX, dtype=flat.dtype)
        for positions in positions_by_text(text):
            row = flat[None, positions]
            text_rng = np.random.default_rng([self.seed, hash_text(row[0])])
            masked_row, label_row = self.of(row, np.zeros_like(row), free[None, positions], vocabulary, text_rng)
            corrupted[positions], labels[positions] = masked_row[0], label_row[0]
        return corrupted.reshape(ids.shape), labels.reshape(ids.shape)
