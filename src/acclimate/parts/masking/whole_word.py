"""Random masking of whole words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from acclimate.parts.masking.base import Strategy, Vocabulary, register
from acclimate.parts.masking.words import Words


def sample_words(
    words: Words,
    rate: float,
    rng: np.random.Generator,
    first: np.ndarray | None = None,
    rank: np.ndarray | None = None,
) -> np.ndarray:
    """Choose words of each text, in random order, until ``rate`` of its tokens are chosen.

    The word that exceeds this number is chosen with the probability that makes the expected number of tokens exact.
    Rounding down would never choose a long word in a short text, and rounding up would choose too many tokens.

    Args:
        words: Words or longer units.
        rate: Share of the tokens of each text.
        rng: Random generator.
        first: Whether each word takes precedence over the others (words,).
        rank: Order of the words, smallest first (words,); random by default.

    Returns:
        Whether each word is chosen (words,).
    """
    lengths, count = words.lengths, len(words)
    draw, boundary_draw = rng.random((2, count))
    order = np.lexsort((draw if rank is None else rank, np.zeros(count) if first is None else ~first, words.text))
    # The texts keep their order, so position i of `order` belongs to the text of word i.
    total = np.bincount(words.text, lengths, minlength=1) if count else np.zeros(1)
    budget = rate * total[words.text]
    sizes = lengths[order]
    before = np.cumsum(sizes) - sizes
    text_starts = np.flatnonzero(np.diff(words.text, prepend=-1))
    before = before - np.repeat(before[text_starts], np.diff(text_starts, append=count))
    fits = before + sizes <= budget + 1e-9
    exceeds = ~fits & (before < budget - 1e-9) & (boundary_draw * sizes < budget - before)
    chosen = np.zeros(count, dtype=bool)
    chosen[order[fits | exceeds]] = True
    return chosen


@register(
    "whole-word",
    paper="Devlin et al., update of 2019; Cui et al., TASLP 2021",
    summary="whole words at random",
)
@dataclass(frozen=True)
class WholeWordMasking(Strategy):
    """Chooses random whole words until ``rate`` of the tokens of a text are chosen.

    The released code of BERT skips words that do not fit into the rounded number of tokens, so it never masks a word
    of several tokens in a short text; see :func:`sample_words` for the rule used here.

    Attributes:
        replacement: Whether the tokens of a ``word`` are replaced alike, or each ``token`` independently, as in the
            released code. The latter can leave a part of the word visible.
    """

    replacement: Literal["word", "token"] = "word"

    def choose(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> np.ndarray:
        """Choose words."""
        words = Words.of(ids, text, allowed, vocabulary.subwords)
        return words.leaders(sample_words(words, self.rate, rng), ids.shape, together=self.replacement == "word")
