"""The order in which a training reads its texts, as a function of the seed and the step alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch.utils.data import Sampler


class StepOrder(Protocol):
    """Chooses the texts of each step."""

    def of(self, step: int) -> list[int]:
        """Return the indices of the texts of a step."""

    def describe(self, steps: int) -> list[dict[str, Any]]:
        """Return what the first ``steps`` steps read of each of several texts; empty if there is one."""


class EpochSampler:
    """Chooses the texts of each step, as a function of the seed and the step alone.

    Each epoch has a new random order, and a step may extend over the end of an epoch. A text that would then occur
    twice in the same step is swapped with a later one, since a contrast between the texts of a step would use it as a
    negative of itself. In epochs of fewer than three steps some duplicates may remain.
    """

    def __init__(self, texts: int, batch_size: int, seed: int) -> None:
        """Prepare the order of texts.

        Args:
            texts: Number of texts.
            batch_size: Texts per step.
            seed: Random seed.
        """
        self.texts, self.batch_size, self.seed = texts, batch_size, seed
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def of(self, step: int) -> list[int]:
        """Return the indices of the texts of a step."""
        return self.between(step * self.batch_size, (step + 1) * self.batch_size)

    def between(self, start: int, stop: int) -> list[int]:
        """Return the indices of the texts at the places from ``start`` to ``stop`` of the order of all epochs."""
        epochs, places = np.divmod(np.arange(start, stop), self.texts)
        found = [self.epoch(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
        return list(np.concatenate(found).tolist()) if found else []

    def describe(self, steps: int) -> list[dict[str, Any]]:
        """Return an empty list: there is one text."""
        return []

    def _epoch(self, number: int) -> np.ndarray:
        """Return the indices of the texts in the order of an epoch: (texts,)."""
        order = self._drawn(number)
        before = self._shared_with_next_epoch(number - 1) if number else 0
        if not before:
            return order
        # Swap only with the middle: the next epoch depends on the end of this one.
        beginning, end = self.batch_size - before, self.texts - self._shared_with_next_epoch(number)
        duplicates = np.isin(order[:end], self._drawn(number - 1)[-before:])
        here, there = duplicates[:beginning].nonzero()[0], beginning + (~duplicates[beginning:]).nonzero()[0]
        here, there = here[: len(there)], there[: len(here)]
        order[here], order[there] = order[there], order[here]
        return order

    def _drawn(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 1, epoch]).permutation(self.texts)

    def _shared_with_next_epoch(self, epoch: int) -> int:
        """Return how many texts of an epoch share a step with texts of the next epoch."""
        return min(self.texts, (epoch + 1) * self.texts % self.batch_size)


class MixtureSampler:
    """Chooses the texts of each step from several sources, as a function of the seed, the step and the shares.

    A text of a source is due once the source has read less than its share of the tokens, so that after any number of
    texts each source is at most about a text away from its share, whatever the lengths. This is start-time fair
    queueing (Goyal et al., 1996). The shares may change before a step (:meth:`change`). What a source is then ahead
    of its share, or behind it, is carried over, so that many changes do not add up to a deviation; a source whose
    share is 0 is not read at all.

    A resumed run needs no other state than the changes: how many texts of each source come before a step follows from
    the cumulative lengths. A source that is read completely starts again in a new random order.
    """

    def __init__(self, lengths: Sequence[np.ndarray], shares: Sequence[float], batch_size: int, seed: int) -> None:
        """Prepare the order of each source.

        Args:
            lengths: Tokens of each text, at least 1, by source: (texts,).
            shares: The share of the tokens of each source, at first; they sum to 1.
            batch_size: Texts per step.
            seed: Random seed.
        """
        self.batch_size = batch_size
        self._sources = [
            _Source(np.asarray(each, dtype=np.int64), batch_size, seed, number) for number, each in enumerate(lengths)
        ]
        self._first = np.cumsum([0, *(source.texts for source in self._sources)]).tolist()
        zeros = (0,) * len(self._sources)
        self._stretches = [_Stretch(0, tuple(shares), 0, zeros, zeros)]
        self._counts = lru_cache(maxsize=4)(self._count_texts)

    def change(self, step: int, shares: Sequence[float]) -> None:
        """Set the shares from a step on.

        Args:
            step: A step that is not before the step of an earlier change; texts of later steps must not be read yet.
            shares: The share of the tokens of each source; they sum to 1.

        Raises:
            ValueError: If an earlier change is later.
        """
        last = self._stretches[-1]
        if step < last.step:
            raise ValueError(f"the shares of step {last.step} are set, so the shares of step {step} cannot change")
        if step == last.step:
            self._stretches[-1] = last._replace(shares=tuple(shares))
        else:
            counts, total = self._find(step * self.batch_size)
            self._stretches.append(_Stretch(step, tuple(shares), total, counts, self._targets(last, total)))
        self._counts.cache_clear()

    @property
    def changes(self) -> list[tuple[int, tuple[float, ...]]]:
        """The steps before which the shares changed, and the shares."""
        return [(stretch.step, stretch.shares) for stretch in self._stretches]

    def of(self, step: int) -> list[int]:
        """Return the indices of the texts of a step in the rows of all sources, one source after the other."""
        before, after = (self._counts(number * self.batch_size) for number in (step, step + 1))
        return [
            first + index
            for first, source, start, end in zip(self._first, self._sources, before, after, strict=False)
            for index in source.between(start, end)
        ]

    def read(self, steps: int) -> list[int]:
        """Return the tokens of each source in the first ``steps`` steps."""
        counts = self._counts(steps * self.batch_size)
        return [source.tokens_before(count) for source, count in zip(self._sources, counts, strict=True)]

    def scheduled(self, steps: int) -> list[float]:
        """Return the tokens of each source that its shares in the first ``steps`` steps amount to."""
        _, total = self._find(steps * self.batch_size)
        return list(self._targets(self._stretch(steps * self.batch_size), total))

    def steps_for(self, epochs: float) -> int:
        """Return the number of steps that read the first source ``epochs`` times with the first shares, rounded up."""
        domain, stretch = self._sources[0], self._stretches[0]
        texts = math.ceil(epochs * domain.texts)
        total = int(domain.tokens_before(texts - 1) / stretch.shares[0])
        while self._due(stretch, total)[0] < texts:
            total += 1
        return max(1, math.ceil(sum(self._due(stretch, total)) / self.batch_size))

    def _stretch(self, position: int) -> _Stretch:
        """Return the stretch in which a text of the mix is, by its place."""
        steps = [stretch.step * self.batch_size for stretch in self._stretches]
        return self._stretches[max(0, bisect_right(steps, position) - 1)]

    def _targets(self, stretch: _Stretch, total: int) -> tuple[float, ...]:
        passed = total - stretch.total
        return tuple(target + passed * share for target, share in zip(stretch.targets, stretch.shares, strict=True))

    def _due(self, stretch: _Stretch, total: int) -> list[int]:
        """Return how many texts of each source are due after ``total`` tokens of the mix."""
        if total == stretch.total:
            return list(stretch.counts)
        # What is read at a change includes all that is due by then, so a source with the share 0 gets nothing more.
        parts = zip(self._sources, stretch.counts, self._targets(stretch, total), strict=True)
        return [max(count, source.due(target)) for source, count, target in parts]

    def _count_texts(self, position: int) -> tuple[int, ...]:
        """Return how many of the first ``position`` texts of the mix are of each source."""
        return self._find(position)[0]

    def _find(self, position: int) -> tuple[tuple[int, ...], int]:
        """Return how many of the first ``position`` texts are of each source, and the tokens of the mix before."""
        stretch = self._stretch(max(0, position - 1))
        start = stretch.step * self.batch_size
        pairs = zip(stretch.shares, self._sources, strict=True)
        mean_length = 1 / sum(share * source.texts / source.tokens for share, source in pairs)

        def due(total: int) -> int:
            return sum(self._due(stretch, total))

        guess, width = stretch.total + int((position - start) * mean_length), 1 + int(self.batch_size * mean_length)
        low = high = guess
        while low > stretch.total and due(low) > position:
            low, width = max(stretch.total, low - width), 2 * width
        while due(high) <= position:
            high, width = high + width, 2 * width
        total = low + bisect_right(range(low, high), position, key=due) - 1
        # The next token makes at most one text per source due, plus the backlog from a change of the shares; ties go
        # to earlier sources.
        before, after = self._due(stretch, total), self._due(stretch, total + 1)
        left = position - sum(before)
        counts = []
        for source, most in zip(before, after, strict=True):
            taken = min(left, most - source)
            counts.append(source + taken)
            left -= taken
        return tuple(counts), total


class _Stretch(NamedTuple):
    """Steps with the same shares.

    Attributes:
        step: The first of them.
        shares: The share of the tokens of each source.
        total: Tokens of the mix before.
        counts: Texts of each source before.
        targets: Tokens of each source before, according to the shares.
    """

    step: int
    shares: tuple[float, ...]
    total: int
    counts: tuple[int, ...]
    targets: tuple[float, ...]


class _Source:
    """The texts of one source in the order in which they are read, one epoch after the other without end."""

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int, number: int) -> None:
        self.lengths = lengths
        self.texts, self.tokens = len(lengths), int(lengths.sum())
        self._order = _SourceOrder(self.texts, batch_size, seed, number)
        self._starts = lru_cache(maxsize=3)(self._find_starts)

    def due(self, tokens: float) -> int:
        """Return how many texts start within the first ``tokens`` tokens of the source."""
        epoch, rest = divmod(tokens, self.tokens)
        return int(epoch) * self.texts + int(np.searchsorted(self._starts(int(epoch)), rest))

    def between(self, start: int, stop: int) -> list[int]:
        """Return the indices of the texts at the places from ``start`` to ``stop`` of the order."""
        return self._order.between(start, stop)

    def tokens_before(self, place: int) -> int:
        """Return the tokens of all texts before a place in the order."""
        epoch, rest = divmod(place, self.texts)
        return epoch * self.tokens + int(self._starts(epoch)[rest])

    def _find_starts(self, epoch: int) -> np.ndarray:
        """Return the tokens of an epoch before each of its texts: (texts,)."""
        lengths = self.lengths[self._order.epoch(epoch)]
        return np.cumsum(lengths) - lengths


class _SourceOrder(EpochSampler):
    """The order of one source of a mix, in which any ``batch_size`` texts in a row are distinct.

    Where the steps begin in it depends on the other sources. Texts at the start of an epoch that are among the last
    ``batch_size`` of the epoch before are therefore all swapped with later ones, unless the source is very short.
    """

    def __init__(self, texts: int, batch_size: int, seed: int, number: int) -> None:
        self._window, self._number = min(texts, batch_size), number
        super().__init__(texts, 2 * self._window, seed)

    def _drawn(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 1, epoch, self._number]).permutation(self.texts)

    def _shared_with_next_epoch(self, epoch: int) -> int:
        return self._window


def describe_sources(mix: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the entries of a line of the log for what a training has read of each of several texts.

    These are the realized share of the tokens so far, the mean loss since the line before (or where the text was read
    last), and the weight in force where a mix changes the weights; each by the name of the text.
    """
    found = {
        "mix": {text["name"]: text["realized"] for text in mix},
        "source_losses": {text["name"]: text["loss"] for text in mix if "loss" in text},
        "source_weights": {text["name"]: text["weights"][-1][1] for text in mix if "weights" in text},
    }
    return {name: values for name, values in found.items() if values}


class EpochSteps(Sampler[int]):
    """The numbers of the steps of the epoch that a training is in."""

    def __init__(self, steps: int, taken: Callable[[], int]) -> None:
        """Set up the sampler.

        Args:
            steps: Steps per epoch.
            taken: Function that returns the number of steps taken.
        """
        self._steps, self._taken = steps, taken

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[int]:
        first = self._taken() // self._steps * self._steps
        return iter(range(first, first + self._steps))
