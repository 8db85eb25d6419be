"""Rewritten texts for views of a batch: without an n-gram, or the n-gram alone (InfoWord; Kong et al., ICLR 2020)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.parts.masking.base import Vocabulary

SECOND_SEGMENT = 1 << 32
"""Added to the ids of a drawn text that are in the second segment of a pair, for models that distinguish the two."""


class Rewriting(ABC):
    """A version of the texts of a batch that a view can read, besides the original and the corrupted one.

    Equal rewritings are computed once per batch, so subclasses are frozen dataclasses. All rewritings of a text get
    the same seed in every batch, so that all that sample an n-gram in the same way get the same n-gram.
    """

    full: ClassVar[bool] = True
    """Whether the rewritten texts are about as long as the originals; False if they cost almost nothing to read."""
    width: int = 0
    """Maximum tokens of a rewritten text, where it may have more than the original; otherwise 0."""

    @abstractmethod
    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """Rewrite the texts.

        Args:
            ids: Original token ids (rows, tokens).
            text: Number of the text of each token, -1 at padding (rows, tokens), increasing in reading order.
            allowed: Whether each token is neither padding nor special (rows, tokens).
            vocabulary: The vocabulary.
            seeds: Random seed of each text (texts,).

        Returns:
            Ids and text numbers of the rewritten texts, with any number of rows and tokens. No text is left out. A
            third array holds what is known of each rewritten text, if anything is: (texts, numbers). A fourth one
            holds the segment of each token, if there are pairs: as the ids.
        """


def positions_by_text(text: np.ndarray) -> list[np.ndarray]:
    """Return the flat positions of the tokens of each text, in order."""
    flat = text.ravel()
    order = np.flatnonzero(flat >= 0)
    return np.split(order, np.flatnonzero(np.diff(flat[order])) + 1) if len(order) else []


@dataclass(frozen=True)
class NGramSampler:
    """Draws one n-gram per text: its length from a rounded normal distribution, its position uniformly.

    At least one token remains outside as context, so a text with fewer than two ordinary tokens has no n-gram.

    Attributes:
        mean: Mean length in tokens.
        deviation: Standard deviation of the length in tokens.
        longest: Maximum length in tokens; the minimum is 1.
    """

    mean: float = 5.0
    deviation: float = 1.0
    longest: int = 10

    def draw(self, text: np.ndarray, allowed: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
        """Return which tokens are in an n-gram, of the shape of ``text``.

        A special token between ordinary ones, such as an unknown word, can be part of an n-gram.

        Args:
            text: Number of the text of each token (rows, tokens).
            allowed: Whether each token is neither padding nor special (rows, tokens).
            seeds: Random seed of each text (texts,).
        """
        inside = np.zeros(text.size, dtype=bool)
        free = allowed.ravel()
        for positions, seed in zip(positions_by_text(text), seeds, strict=True):
            rng = np.random.default_rng(seed)
            drawn_length = int(np.clip(np.rint(rng.normal(self.mean, self.deviation)), 1, self.longest))
            drawn_start = rng.random()
            ordinary = np.flatnonzero(free[positions])
            if len(ordinary) < 2:
                continue
            first, body = ordinary[0], ordinary[-1] - ordinary[0] + 1
            length = min(drawn_length, body - 1)
            start = first + int(drawn_start * (body - length + 1))
            inside[positions[start : start + length]] = True
        return inside.reshape(text.shape)


@dataclass(frozen=True)
class MaskNGram(Rewriting):
    """The original text with each token of the n-gram replaced by the mask token; same shape as the original."""

    ngrams: NGramSampler = NGramSampler()

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask the n-gram of each text."""
        return np.where(self.ngrams.draw(text, allowed, seeds), vocabulary.mask_id, ids), text


@dataclass(frozen=True)
class ExtractNGram(Rewriting):
    """The n-gram of each text between the special tokens at its start and end, one short row per text.

    A text without an n-gram keeps only its special tokens, or all of its tokens if it has no others.
    """

    full: ClassVar[bool] = False

    ngrams: NGramSampler = NGramSampler()

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Extract the n-gram of each text."""
        inside, free, flat = self.ngrams.draw(text, allowed, seeds).ravel(), allowed.ravel(), ids.ravel()
        rows = []
        for positions in positions_by_text(text):
            ordinary = np.flatnonzero(free[positions])
            kept = inside[positions]
            if len(ordinary):
                kept[: ordinary[0]] = True
                kept[ordinary[-1] + 1 :] = True
            rows.append(flat[positions[kept]] if kept.any() else flat[positions])
        return make_rows(rows, ids, text)


def make_rows(rows: Sequence[np.ndarray], ids: np.ndarray, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and text numbers of one row per text; they have the types of ``ids`` and ``text``."""
    width = max((len(row) for row in rows), default=0)
    made = np.zeros((len(rows), width), dtype=ids.dtype)
    number = np.full((len(rows), width), -1, dtype=text.dtype)
    for index, row in enumerate(rows):
        made[index, : len(row)] = row
        number[index, : len(row)] = index
    return made, number


@dataclass(frozen=True)
class DropTokens(Rewriting):
    """The original text with certain tokens turned into padding, which no token attends to.

    Attributes:
        tokens: Ids of these tokens. They must be at the end of a text, so that the positions of the others do not
            change.
    """

    tokens: tuple[int, ...]

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Turn the tokens into padding."""
        return ids, np.where(np.isin(ids, self.tokens), -1, text)


class Drawing(Rewriting):
    """Another text for each text of the batch, which is drawn with its seed, and what is known of the drawn text.

    So a step reads labelled examples, or pairs of texts, next to the domain text. Like masks, they depend on the seed
    of the run and the number of the step alone.

    Attributes:
        width: Maximum tokens of a drawn text.
    """

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return the token ids of a text (tokens,), and the numbers that are known of it.

        The ids of a second segment have :data:`SECOND_SEGMENT` added.
        """

    def __call__(
        self, ids: np.ndarray, text: np.ndarray, allowed: np.ndarray, vocabulary: Vocabulary, seeds: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """Return a drawn text instead of each text, what is known of it, and its segments if it has two."""
        drawn = [self.draw(np.random.default_rng(seed)) for seed in seeds]
        marked, number = make_rows([row for row, _ in drawn], ids, text)
        segments, rows = np.divmod(marked, SECOND_SEGMENT)
        return rows, number, np.array([known for _, known in drawn]), *([segments] if segments.any() else [])


class DrawExamples(Drawing):
    """A labelled example of one of several tasks, each example with the same probability; returns task and class."""

    def __init__(self, tasks: Sequence[Sequence[tuple[np.ndarray, int]]]) -> None:
        """Set up the examples.

        Args:
            tasks: The token ids and the class of each example, by task.
        """
        self.examples = [(row, (task, label)) for task, rows in enumerate(tasks) for row, label in rows]
        self.width = max(len(row) for row, _ in self.examples)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return an example, the number of its task, and its class."""
        return self.examples[int(rng.integers(len(self.examples)))]


RELATIONS = ("random", "linked", "grouped")
"""Classes of pairs: entries of different groups, entries with the same code, and other entries of the same group."""


class DrawRelations(Drawing):
    """A pair of entries of a taxonomy, and its class among :data:`RELATIONS` (Zhang et al., ACL 2023).

    The first entry is uniform, the class is uniform among those that are possible for it, and the second entry is
    uniform within that class. An entry is never paired with itself, and no pair is of two classes.
    """

    def __init__(
        self,
        entries: Sequence[tuple[str, str, str]],
        encode: Callable[[str, str], Sequence[int]],
        width: int,
    ) -> None:
        """Set up the pairs.

        Args:
            entries: Group, code and text of each entry; all entries with a code have the same group.
            encode: Returns the token ids of a pair of texts.
            width: Maximum tokens of a pair.
        """
        self.entries, self.encode, self.width = sorted(entries), encode, width
        places = range(len(self.entries))
        # Entries with the same group or code are neighbours, so a class is a range without another range.
        self._groups = self._ranges([self.entries[place][0] for place in places])
        self._codes = self._ranges([self.entries[place][1] for place in places])

    @staticmethod
    def _ranges(names: Sequence[str]) -> list[range]:
        """Return for each place the range of places with the same name, which are neighbours."""
        found, start = list[range](), 0
        for place, name in enumerate(names):
            if place + 1 == len(names) or names[place + 1] != name:
                found += [range(start, place + 1)] * (place + 1 - start)
                start = place + 1
        return found

    def candidates(self, first: int) -> list[tuple[range, range]]:
        """Return for each class the range of the second entries and the range within it that is left out."""
        group, code = self._groups[first], self._codes[first]
        return [(range(len(self.entries)), group), (code, range(first, first + 1)), (group, code)]

    @property
    def counts(self) -> list[int]:
        """The number of pairs of each class."""
        pairs = [self.candidates(first) for first in range(len(self.entries))]
        return [sum(len(one[number][0]) - len(one[number][1]) for one in pairs) for number in range(len(RELATIONS))]

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return a pair, and 0 (the number of its task) and its class."""
        first = int(rng.integers(len(self.entries)))
        classes = self.candidates(first)
        possible = [number for number, (inside, without) in enumerate(classes) if len(inside) > len(without)]
        label = int(rng.choice(possible))
        inside, without = classes[label]
        second = inside.start + int(rng.integers(len(inside) - len(without)))
        second += len(without) * (second >= without.start)
        return np.array(self.encode(self.entries[first][2], self.entries[second][2])), (0, label)


class DrawTriplets(DrawRelations):
    """A triplet of documents: an anchor, another one with the same code, and one with another code.

    The drawn text is a single token, since the documents are not read as tokens; what is known are the three indices
    in ``entries``, which are sorted. Anchors are uniform among the documents that are not alone with their code.
    """

    full: ClassVar[bool] = False

    def __init__(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Set up the triplets of entries; see :class:`DrawRelations`."""
        super().__init__(entries, lambda first, second: (), 0)
        self.anchors = [place for place, code in enumerate(self._codes) if 1 < len(code) < len(self.entries)]

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return a token, and the indices of anchor, positive and negative."""
        anchor = self.anchors[int(rng.integers(len(self.anchors)))]
        code = self._codes[anchor]
        positive = code.start + int(rng.integers(len(code) - 1))
        negative = int(rng.integers(len(self.entries) - len(code)))
        indices = (anchor, positive + (positive >= anchor), negative + len(code) * (negative >= code.start))
        return np.zeros(1, dtype=np.int64), indices
