"""Batches of texts of similar length, so that little time goes into padding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

from acclimate.models.batching import round_up


class LengthGroupedBatches(Sampler[list[int]]):
    """Random batches of items of similar length; every item once an epoch.

    An epoch shuffles the items, cuts them into pools, sorts each pool by length, cuts it into batches and shuffles
    the batches. A pool is 50 batches, or a quarter of the data if that is less: with one pool over a small data set
    the same items would meet in every epoch. Each iteration is the next epoch; order depends on nothing but the seed
    and the number of the epoch. All batches are full but for one, which can fall anywhere.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int, pool: int = 50):
        """Plan batches.

        Args:
            lengths: Tokens of each item.
            size: Items a batch.
            seed: The seed of the run.
            pool: The most batches that are sorted together.
        """
        self.lengths, self.size, self.seed, self.epoch = lengths, size, seed, 0
        self.pool = size * max(1, min(pool, len(self) // 4))

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.lengths) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the item numbers of each batch of the next epoch."""
        chance = random.Random(f"{self.seed}/{self.epoch}")
        self.epoch += 1
        items = list(range(len(self.lengths)))
        chance.shuffle(items)
        batches: list[list[int]] = []
        for start in range(0, len(items), self.pool):
            pool = sorted(items[start : start + self.pool], key=self.lengths.__getitem__)
            batches += [pool[first : first + self.size] for first in range(0, len(pool), self.size)]
        chance.shuffle(batches)
        return iter(batches)


def token_budget_batches(rows: Sequence[Sequence[int]], tokens: int, multiple: int = 1) -> list[list[int]]:
    """Cut rows into batches of at most ``tokens`` tokens, padding included; a longer row stands alone.

    The rows are taken by length and then by content, so that the same rows meet in the same batch in whatever order
    they are given: a prediction then does not depend on that order, not even in the last bit.

    Args:
        rows: The token ids of each row.
        tokens: The budget.
        multiple: Rows are padded to multiples of so many tokens.

    Returns:
        Row numbers, each once, the longest rows first: what does not fit into memory fails at once.
    """
    order = sorted(range(len(rows)), key=lambda place: (len(rows[place]), list(rows[place])), reverse=True)
    batches: list[list[int]] = []
    room = 0
    for place in order:
        if room < 1:
            batches.append([])
            room = max(1, tokens // max(1, round_up(len(rows[place]), multiple)))
        batches[-1].append(place)
        room -= 1
    return batches
