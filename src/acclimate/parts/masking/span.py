"""Masking of contiguous spans."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from acclimate.base.errors import UserError
from acclimate.parts.masking.base import Strategy, Vocabulary, register
from acclimate.parts.masking.words import Words


@register("span", paper="Joshi et al., TACL 2020 (SpanBERT)", summary="spans of words of random length")
@dataclass(frozen=True)
class SpanMasking(Strategy):
    """Chooses spans of whole words until ``rate`` of the tokens of a text are chosen (SpanBERT, Joshi et al., 2020).

    The length of a span in words is drawn from a geometric distribution and redrawn if it exceeds ``longest``, which
    gives the paper's mean of 3.8 words. Its first word is drawn uniformly. A span ends early at a word that is already
    chosen and at the end of the text. The word that would exceed the rate is the last; it is chosen with the
    probability that makes the expected number of tokens exact.

    Attributes:
        p: Parameter of the geometric distribution.
        longest: Maximum length of a span in words.
    """

    p: float = 0.2
    longest: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p < 1 or self.longest < 1:
            raise UserError(
                f"span: 'p' must be between 0 and 1 and 'longest' at least 1, not {self.p} and {self.longest}."
            )

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose spans."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        probabilities = (1 - self.p) ** np.arange(self.longest)
        cumulative = np.cumsum(probabilities / probabilities.sum())
        span = np.full(len(words), -1)  # the first word of the span of each chosen word
        text_starts = np.flatnonzero(np.diff(words.text, prepend=-1, append=-2))
        lengths = words.lengths.tolist()
        for start, stop in pairwise(text_starts.tolist()):
            self._choose_spans(span[start:stop], start, lengths[start:stop], cumulative, rng)
        leader = np.repeat(span, words.lengths)
        result = np.full(ids.shape, -1)
        result.ravel()[words.positions] = np.where(leader >= 0, words.positions[words.starts[:-1][leader]], -1)
        return result

    def _choose_spans(
        self, span: np.ndarray, offset: int, lengths: list[int], cumulative: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Choose the spans of one text, whose words are numbered from ``offset``."""
        count, budget = len(lengths), self.rate * sum(lengths)
        # Going through a permutation is the same as drawing first words until one is free.
        for first in rng.permutation(count).tolist():
            if span[first] >= 0:
                continue
            drawn_length = 1 + int(np.searchsorted(cumulative, rng.random(), side="right"))
            for word in range(first, min(first + drawn_length, count)):
                if span[word] >= 0:
                    break
                size = lengths[word]
                if size > budget:
                    if rng.random() * size < budget:
                        span[word] = offset + first
                    return
                span[word] = offset + first
                budget -= size


@register(
    "span-merge", paper="Liu et al., AAAI 2021 (CrossNER)", summary="random tokens, with isolated ones merged in pairs"
)
@dataclass(frozen=True)
class SpanMerge(Strategy):
    """Chooses random tokens and merges isolated ones in pairs (CrossNER, Liu et al., 2021).

    Tokens are first chosen as in random masking. A chosen token is isolated if neither neighbour is chosen. From left
    to right, the isolated tokens of a text are paired, and the first token of a pair is moved next to the second: the
    token before the second is chosen in its place, or the one after it if the former cannot be chosen. If neither can,
    the pair remains. So the number of chosen tokens does not change.
    """

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose tokens."""
        number = text.ravel()
        free = allowed.ravel()
        chosen = free & (rng.random(ids.shape) < self.rate).ravel()
        # Neighbours must be in the same text.
        left = np.zeros_like(chosen)
        left[1:] = chosen[:-1] & (number[1:] == number[:-1])
        right = np.zeros_like(chosen)
        right[:-1] = chosen[1:] & (number[1:] == number[:-1])
        first = -1
        for second in np.flatnonzero(chosen & ~left & ~right).tolist():
            if first < 0 or number[first] != number[second]:
                first = second
                continue
            neighbours = (second - 1, second + 1)
            adjacent = next((other for other in neighbours if self._can_choose(other, second, free, number)), None)
            if adjacent is not None:
                chosen[first], chosen[adjacent] = False, True
            first = -1
        return np.where(chosen, np.arange(ids.size), -1).reshape(ids.shape)

    @staticmethod
    def _can_choose(neighbour: int, token: int, free: np.ndarray, number: np.ndarray) -> bool:
        return bool(0 <= neighbour < len(free) and free[neighbour] and number[neighbour] == number[token])
