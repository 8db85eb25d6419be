"""Random bits by the million, for dropout on a CPU.

The generator of torch makes one number after the other on one core, which costs a training step more than its layer
normalisations. Here it makes one key for each draw, and a mixing function turns key and counter into a word of 64 bits
at any place, so that all cores work on it: SplitMix64 (Steele, Lea and Flood, 2014, "Fast Splittable Pseudorandom
Number Generators"), without its last shift, and with shifts that repeat the sign, which torch has.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WORD = 64
STRIDE, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of SplitMix64: what its counter advances by, and what it multiplies with."""
PIECE = 1 << 16
"""Words that are made at a time: they and their counters stay in the cache."""


def random_key() -> int:
    """Draw what words follow from: 64 bits of the generator of torch, so of its seed."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def random_words(count: int, key: int) -> Tensor:
    """Make words of 64 random bits.

    Args:
        count: How many.
        key: What they follow from.

    Returns:
        (count,) int64.
    """
    words = torch.empty(count, dtype=torch.int64)
    shifted = torch.empty(min(count, PIECE), dtype=torch.int64)
    for start in range(0, count, PIECE):
        piece = words[start : start + PIECE]
        torch.add(_counters()[: len(piece)], signed(key + start * STRIDE), out=piece)
        _mix(piece, shifted[: len(piece)])
    return words


def signed(number: int) -> int:
    """Return the integer of 64 bits, with a sign, that has the lowest 64 bits of ``number``."""
    return (number + (1 << (WORD - 1))) % (1 << WORD) - (1 << (WORD - 1))


def _mix(words: Tensor, room: Tensor) -> None:
    """Mix the bits of each word in place; ``room`` is as large and is overwritten."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        torch.bitwise_right_shift(words, shift, out=room)
        words.bitwise_xor_(room).mul_(signed(factor))


@cache
def _counters() -> Tensor:
    return torch.arange(PIECE, dtype=torch.int64) * signed(STRIDE)
