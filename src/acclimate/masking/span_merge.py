"""Isolated masks moved together in pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.registry import register


@register(
    "span-merge", paper="Liu et al., AAAI 2021 (CrossNER)", summary="random tokens, isolated ones moved together"
)
@dataclass(frozen=True)
class SpanMerge(Strategy):
    """Random tokens, then each second isolated one draws the one before it to its side (CrossNER, Liu et al., 2021).

    Tokens are chosen as by random masking. A chosen token is isolated if neither neighbour is chosen. Of the isolated
    tokens of a text, from left to right, the first and second make a pair, the third and fourth, and so on: the first
    of a pair is given up, and the token before the second is chosen in its stead. If that one cannot be chosen (it
    is special), the one after the second is; if neither can, both stay. So as many tokens are chosen as before, and
    those that were next to each other stay.
    """

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        number = text.ravel()
        free = allowed.ravel()
        chosen = free & (rng.random(ids.shape) < self.rate).ravel()
        # Neighbours in one text; what is at the end of a row borders on padding or on another text.
        left = np.zeros_like(chosen)
        left[1:] = chosen[:-1] & (number[1:] == number[:-1])
        right = np.zeros_like(chosen)
        right[:-1] = chosen[1:] & (number[1:] == number[:-1])
        waiting = -1
        for place in np.flatnonzero(chosen & ~left & ~right).tolist():
            if waiting < 0 or number[waiting] != number[place]:
                waiting = place
                continue
            beside = next((other for other in (place - 1, place + 1) if self._open(other, place, free, number)), None)
            if beside is not None:
                chosen[waiting], chosen[beside] = False, True
            waiting = -1
        return np.where(chosen, np.arange(ids.size), -1).reshape(ids.shape)

    @staticmethod
    def _open(other: int, place: int, free: np.ndarray, number: np.ndarray) -> bool:
        return bool(0 <= other < len(free) and free[other] and number[other] == number[place])
