"""Spans of several words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from acclimate.errors import UserError
from acclimate.masking.base import Strategy, Vocabulary
from acclimate.masking.registry import register
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
