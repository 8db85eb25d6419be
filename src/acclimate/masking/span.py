"""Spans of several words.

Isolated masks moved together in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary, register
from acclimate.masking.words import Words


@register("span", paper="Joshi et al., TACL 2020 (SpanBERT)", summary="spans of words of random length")
@dataclass(frozen=True)
class SpanMasking(Strategy):
    """Spans of whole words until ``rate`` of the tokens of a text are chosen (SpanBERT, Joshi et al., 2020).

    The length of a span, in words, has the geometric distribution with probability ``p``, cut off after ``longest``
    (longer draws are drawn again, which gives the 3.8 words of the paper); the word it begins with is drawn
    uniformly. A span ends early at a word that another one has, and at the end of the text. The word that would go
    over the rate is taken with the probability that makes the expected number of tokens right, and is the last.

    Attributes:
        p: Of the geometric distribution.
        longest: Longest span, in words.
    """

    p: float = 0.2
    longest: int = 10

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        super().__post_init__()
        if not 0 < self.p < 1 or self.longest < 1:
            raise UserError(
                f"span: 'p' must be between 0 and 1, 'longest' 1 or more, not {self.p} and {self.longest}."
            )

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose spans."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        chances = (1 - self.p) ** np.arange(self.longest)
        upto = np.cumsum(chances / chances.sum())
        span = np.full(len(words), -1)  # the word that each chosen word shares its fate with
        cuts = np.flatnonzero(np.diff(words.text, prepend=-1, append=-2))
        length = words.length.tolist()
        for start, stop in pairwise(cuts.tolist()):
            self._fill(span[start:stop], start, length[start:stop], upto, rng)
        leader = np.repeat(span, words.length)
        result = np.full(ids.shape, -1)
        result.ravel()[words.place] = np.where(leader >= 0, words.place[words.first[:-1][leader]], -1)
        return result

    def _fill(
        self, span: np.ndarray, offset: int, length: list[int], upto: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Choose spans of one text, the words of which are numbered from ``offset``."""
        count, room = len(length), self.rate * sum(length)
        # Starts in random order without those that are taken: as drawing again until a free one comes.
        for first in rng.permutation(count).tolist():
            if span[first] >= 0:
                continue
            wanted = 1 + int(np.searchsorted(upto, rng.random(), side="right"))
            for word in range(first, min(first + wanted, count)):
                if span[word] >= 0:
                    break
                size = length[word]
                if size > room:
                    if rng.random() * size < room:
                        span[word] = offset + first
                    return
                span[word] = offset + first
                room -= size


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
