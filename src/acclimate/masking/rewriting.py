"""One n-gram of each text: the text without it, and the n-gram alone (InfoWord, Kong et al., ICLR 2020).

Texts without some of their tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.masking.base import Vocabulary


class Rewriting(ABC):
    """A way to write the texts of a batch, beside the original and the corrupted one, that a view can ask for.

    Equal rewritings are made once a batch, so subclasses are frozen dataclasses. All rewritings of a text get the
    same seed: two that begin with the same draw agree on it, in whatever batch the text stands.
    """

    full: ClassVar[bool] = True
    """False if the rewritten texts are much shorter than the texts, so that reading them costs next to nothing."""

    @abstractmethod
    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rewrite the texts.

        Args:
            ids: Original token ids (rows, tokens).
            text: Number of the text of each token, -1 at padding (rows, tokens); the numbers rise in reading order.
            allowed: True where a token is neither padding nor special (rows, tokens).
            vocabulary: The mask token and the ordinary ids.
            seeds: Source of chance of each text (texts).

        Returns:
            Ids and text numbers of the rewritten texts, any number of rows and tokens, every text still there.
        """


def positions_by_text(text: np.ndarray) -> list[np.ndarray]:
    """Return the flat positions of the tokens of each text, in order."""
    flat = text.ravel()
    order = np.flatnonzero(flat >= 0)
    return np.split(order, np.flatnonzero(np.diff(flat[order])) + 1) if len(order) else []


@dataclass(frozen=True)
class NGramSampler:
    """Draws one n-gram a text: its length from a rounded normal distribution, its place uniformly.

    At least one token of the text stays outside the n-gram: a text that is all n-gram would say nothing about it. A
    text with fewer than two ordinary tokens therefore has none.

    Attributes:
        mean: Mean length in tokens.
        deviation: Standard deviation of the length.
        longest: Longest n-gram; the shortest is one token.
    """

    mean: float = 5.0
    deviation: float = 1.0
    longest: int = 10

    def draw(self, text: np.ndarray, allowed: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
        """Return where the n-grams are, with a seed for each text: boolean, of the shape of ``text``.

        A special token between ordinary ones, such as an unknown word, may be part of an n-gram.
        """
        inside = np.zeros(text.size, dtype=bool)
        free = allowed.ravel()
        for place, seed in zip(positions_by_text(text), seeds, strict=True):
            rng = np.random.default_rng(seed)
            wanted = int(np.clip(np.rint(rng.normal(self.mean, self.deviation)), 1, self.longest))
            share = rng.random()
            ordinary = np.flatnonzero(free[place])
            if len(ordinary) < 2:
                continue
            first, body = ordinary[0], ordinary[-1] - ordinary[0] + 1
            length = min(wanted, body - 1)
            start = first + int(share * (body - length + 1))
            inside[place[start : start + length]] = True
        return inside.reshape(text.shape)


@dataclass(frozen=True)
class MaskNGram(Rewriting):
    """The original text with the mask token in place of each token of the n-gram; same shape as the original."""

    ngrams: NGramSampler = NGramSampler()

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hide the n-gram of each text."""
        return np.where(self.ngrams.draw(text, allowed, seeds), vocabulary.mask_id, ids), text


@dataclass(frozen=True)
class ExtractNGram(Rewriting):
    """The n-gram of each text between the special tokens that open and close the text; one short row a text.

    A text without an n-gram leaves its special tokens, or all of itself if it has no ordinary token.
    """

    full: ClassVar[bool] = False

    ngrams: NGramSampler = NGramSampler()

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut out the n-gram of each text."""
        inside, free, flat = self.ngrams.draw(text, allowed, seeds).ravel(), allowed.ravel(), ids.ravel()
        rows = []
        for place in positions_by_text(text):
            ordinary = np.flatnonzero(free[place])
            kept = inside[place]
            if len(ordinary):
                kept[: ordinary[0]] = True
                kept[ordinary[-1] + 1 :] = True
            rows.append(flat[place[kept]] if kept.any() else flat[place])
        width = max((len(row) for row in rows), default=0)
        # What stands at padding has no meaning, so any id will do.
        alone = np.zeros((len(rows), width), dtype=ids.dtype)
        number = np.full((len(rows), width), -1, dtype=text.dtype)
        for index, row in enumerate(rows):
            alone[index, : len(row)] = row
            number[index, : len(row)] = index
        return alone, number


@dataclass(frozen=True)
class DropTokens(Rewriting):
    """The original text, certain tokens unseen: they count as padding, so nothing attends to them.

    Attributes:
        tokens: Their ids; they stand at the end of a text, so that the places of the others stay as they are.
    """

    tokens: tuple[int, ...]

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the tokens out of their texts."""
        return ids, np.where(np.isin(ids, self.tokens), -1, text)
