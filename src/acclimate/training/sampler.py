"""The order in which a training reads its texts, as a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol

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
