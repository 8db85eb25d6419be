"""Random token masking, as BERT does it.

Whole words instead of parts of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from acclimate.masking.base import Strategy, Vocabulary, register
from acclimate.masking.words import Words


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


def sample_words(
    words: Words,
    rate: float,
    rng: np.random.Generator,
    first: np.ndarray | None = None,
    rank: np.ndarray | None = None,
) -> np.ndarray:
    """Take words of each text in random order until ``rate`` of its tokens are taken.

    The word that goes over that number is taken with the probability that makes the expected number of tokens right.
    So long words stay in the game in short texts, where rounding down would never take them, and rounding up would
    mask more than asked for.

    Args:
        words: Words or longer units.
        rate: Share of the tokens of each text.
        rng: Source of chance.
        first: Words that come before all others (words).
        rank: Order of the words, smallest first; random by default (words).

    Returns:
        Which words are taken (words).
    """
    length, last = words.length, len(words)
    draw, crossing = rng.random((2, last))
    order = np.lexsort((draw if rank is None else rank, np.zeros(last) if first is None else ~first, words.text))
    # lexsort keeps the texts in their order, so positions in `order` and in `words` agree on the text.
    total = np.bincount(words.text, length, minlength=1) if last else np.zeros(1)
    room = rate * total[words.text]
    sizes = length[order]
    reached = np.cumsum(sizes)
    before = reached - sizes
    opening = np.flatnonzero(np.diff(words.text, prepend=-1))
    before = before - np.repeat(before[opening], np.diff(opening, append=last))
    within = before + sizes <= room + 1e-9
    over = ~within & (before < room - 1e-9) & (crossing * sizes < room - before)
    taken = np.zeros(last, dtype=bool)
    taken[order[within | over]] = True
    return taken


@register(
    "whole-word",
    paper="Devlin et al., update of 2019; Cui et al., TASLP 2021",
    summary="words at random, all of their tokens",
)
@dataclass(frozen=True)
class WholeWordMasking(Strategy):
    """Words in random order, all of their tokens, until ``rate`` of the tokens of a text are chosen.

    The released code of BERT skips words that do not fit into the rounded number of tokens, so that words of several
    tokens are never masked in short texts; see :func:`sample_words` for what is done here.

    Attributes:
        fate: What becomes the mask token or a random one together: all tokens of a ``word``, or each ``token`` for
            itself, as in the released code. By words is the default: a word of which a part is left to be seen is no
            hidden word.
    """

    fate: Literal["word", "token"] = "word"

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose words."""
        words = Words.of(ids, text, allowed, vocabulary.pieces)
        return words.leaders(sample_words(words, self.rate, rng), ids.shape, together=self.fate == "word")
