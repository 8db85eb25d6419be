"""In which order texts are read: an epoch visits each once, and a step that reaches over its end holds none twice."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


class Order:
    """Which texts each step reads, a function of the seed and the step alone.

    Each epoch has an order drawn anew, and a step may reach over the end of one. A text that was among the last of an
    epoch and would come again in the same step changes places with a later one: a contrast between the texts of a
    step would take it as a negative of itself. Where an epoch has fewer than three steps some may stay.
    """

    def __init__(self, texts: int, batch_size: int, seed: int) -> None:
        """Draw nothing yet.

        Args:
            texts: How many there are.
            batch_size: Texts of a step.
            seed: Of the draws.
        """
        self.texts, self.batch_size, self.seed = texts, batch_size, seed
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def of(self, step: int) -> list[int]:
        """Return the texts of a step, by number."""
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self.epoch(place // self.texts)[place % self.texts]) for place in places]

    def _epoch(self, number: int) -> np.ndarray:
        """Return the order of an epoch (texts,)."""
        order = self._drawn(number)
        before = self._in_the_step_after(number - 1) if number else 0
        if not before:
            return order
        # Only the middle changes places with the beginning: the end is what the next epoch has to know of this one.
        beginning, end = self.batch_size - before, self.texts - self._in_the_step_after(number)
        twice = np.isin(order[:end], self._drawn(number - 1)[-before:])
        here, there = twice[:beginning].nonzero()[0], beginning + (~twice[beginning:]).nonzero()[0]
        here, there = here[: len(there)], there[: len(here)]
        order[here], order[there] = order[there], order[here]
        return order

    def _drawn(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 1, epoch]).permutation(self.texts)

    def _in_the_step_after(self, epoch: int) -> int:
        """Return how many texts of an epoch share a step with those of the next one."""
        return min(self.texts, (epoch + 1) * self.texts % self.batch_size)
