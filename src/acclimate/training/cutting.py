"""Where a step is cut into micro-batches: as little padding as can be had for the number of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acclimate.backbone.shapes import Grain


def cut(lengths: Sequence[int], limit: int, grain: Grain) -> list[slice]:
    """Cut rows, in their order, into micro-batches so that padding and the price of each piece add up to the least.

    Of all ways to cut it is the cheapest (dynamic programming over the places to cut at).

    Args:
        lengths: Tokens of each row.
        limit: Tokens of a micro-batch at most, padding counted by its price; a row that is longer stands alone.
        grain: What widths are rounded up to, and the prices of padding and of a micro-batch in tokens.

    Returns:
        The rows of each micro-batch.
    """
    total = len(lengths)
    widths = np.array([grain.wide(length) for length in lengths], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(lengths)])
    cheapest = np.full(total + 1, np.inf)
    cheapest[0] = 0
    begin = np.zeros(total + 1, dtype=np.int64)
    for end in range(1, total + 1):
        first = min(int(np.searchsorted(before, before[end] - limit)), end - 1)  # without padding it is too much
        width = np.maximum.accumulate(widths[first:end][::-1])  # of the pieces that begin one, two, ... rows before
        rows = np.arange(1, len(width) + 1)
        read = grain.price(before[end] - before[end - rows], rows * width)
        price = np.where((read <= limit) | (rows == 1), read + grain.piece + cheapest[end - rows], np.inf)
        best = int(price.argmin())
        cheapest[end], begin[end] = price[best], end - 1 - best
    cuts = []
    end = total
    while end:
        cuts.append(slice(int(begin[end]), end))
        end = int(begin[end])
    return cuts[::-1]


def fewest(lengths: Sequence[int], limit: int, grain: Grain) -> int:
    """Return how many micro-batches rows need at least; the arguments are those of :func:`cut`.

    Each takes what fits, which is the fewest in all, since a part of one that fits fits as well.
    """
    pieces = rows = width = real = 0
    for length in lengths:
        rows, width, real = rows + 1, max(width, grain.wide(length)), real + length
        if rows == 1 or grain.price(real, rows * width) > limit:
            pieces, rows, width, real = pieces + 1, 1, grain.wide(length), length
    return pieces
