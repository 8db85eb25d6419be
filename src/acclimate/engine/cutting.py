"""Cutting the texts of a step into micro-batches, and sharing them between processes, by their lengths alone."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from acclimate.engine.distributed import ProcessGroup
from acclimate.models.batching import PaddingPolicy

MASK_BLOCK = 256
"""Maximum number of texts that one random generator masks. A process masks the blocks that its texts are in."""


def mask_blocks(lengths: np.ndarray) -> list[np.ndarray]:
    """Divide the texts of a step into blocks, each of which is masked together and has texts of all lengths.

    Blocks depend on the lengths alone, and so do masks; the number of processes has no effect on them. The number of
    blocks is a power of two, since most numbers of processes have one as a factor.

    Args:
        lengths: Tokens of each text (texts,).

    Returns:
        The indices of the texts of each block, the longest first.
    """
    order = np.argsort(-lengths, kind="stable")
    blocks = 1
    while blocks * MASK_BLOCK < len(order):
        blocks *= 2
    turn, place = np.divmod(np.arange(len(order)), blocks)
    block = np.where(turn % 2, blocks - 1 - place, place)  # dealt back and forth, so that all get about as many tokens
    ends = np.cumsum(np.bincount(block, minlength=blocks))
    return np.split(order[np.argsort(block, kind="stable")], ends[:-1])


def join_team(group: ProcessGroup, blocks: int, texts: int) -> tuple[ProcessGroup, slice]:
    """Divide processes and blocks of texts into as many teams as possible.

    Args:
        group: The processes that share a step.
        blocks: Number of blocks of its texts, from :func:`mask_blocks`.
        texts: Number of its texts.

    Returns:
        The team of this process, as a group of its own without communication, and the blocks that the team reads.
    """
    teams = math.gcd(blocks, group.size) if texts >= 2 * group.size else 1  # with fewer texts, a team might lack some
    size, share = group.size // teams, blocks // teams
    team = group.rank // size
    return ProcessGroup(group.rank % size, size), slice(team * share, (team + 1) * share)


def split_micro_batches(lengths: Sequence[int], limit: int, policy: PaddingPolicy) -> list[slice]:
    """Split rows, in their order, into micro-batches of minimal total cost, by dynamic programming.

    Args:
        lengths: Tokens of each row.
        limit: Maximum tokens per micro-batch, with padding counted at its cost; a longer row is one by itself.
        policy: Rounding of widths, and the costs of padding and of a micro-batch in tokens.

    Returns:
        The rows of each micro-batch.
    """
    total = len(lengths)
    widths = np.array([policy.padded_width(length) for length in lengths], dtype=np.int64)
    if total and policy.cost(sum(lengths), total * int(widths.max())) <= min(limit, policy.batch_overhead):
        return [slice(0, total)]  # another micro-batch costs more than it could save
    return _cheapest_split(lengths, widths, limit, policy)


def _cheapest_split(lengths: Sequence[int], widths: np.ndarray, limit: int, policy: PaddingPolicy) -> list[slice]:
    total = len(lengths)
    before = np.concatenate([[0], np.cumsum(lengths)])
    cheapest = np.full(total + 1, np.inf)
    cheapest[0] = 0
    begin = np.zeros(total + 1, dtype=np.int64)
    for end in range(1, total + 1):
        # Micro-batches that start at an earlier row would exceed the limit even without padding.
        first = min(int(np.searchsorted(before, before[end] - limit)), end - 1)
        width = np.maximum.accumulate(widths[first:end][::-1])  # of micro-batches of one, two, ... rows
        rows = np.arange(1, len(width) + 1)
        read = policy.cost(before[end] - before[end - rows], rows * width)
        price = np.where((read <= limit) | (rows == 1), read + policy.batch_overhead + cheapest[end - rows], np.inf)
        best = int(price.argmin())
        cheapest[end], begin[end] = price[best], end - 1 - best
    cuts = []
    end = total
    while end:
        cuts.append(slice(int(begin[end]), end))
        end = int(begin[end])
    return cuts[::-1]


def fewest_micro_batches(lengths: Sequence[int], limit: int, policy: PaddingPolicy) -> int:
    """Return the minimum number of micro-batches; the arguments are the same as in :func:`split_micro_batches`.

    Filling each micro-batch before starting the next is optimal, since any part of a micro-batch within the limit is
    within it, too.
    """
    pieces = rows = width = real = 0
    for length in lengths:
        rows, width, real = rows + 1, max(width, policy.padded_width(length)), real + length
        if rows == 1 or policy.cost(real, rows * width) > limit:
            pieces, rows, width, real = pieces + 1, 1, policy.padded_width(length), length
    return pieces


def pack_best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign texts to rows by best fit decreasing (Johnson, 1974): each to the fullest row that has room for it.

    Args:
        lengths: Tokens of each text, longest first.
        capacity: Tokens per row. A longer text is a row by itself.

    Returns:
        The indices of the texts of each row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # the room in each row and its index, sorted
    for text, length in enumerate(lengths):
        place = bisect_left(free, (length, 0))
        if place == len(free):
            rows.append([text])
            room, row = capacity, len(rows) - 1
        else:
            room, row = free.pop(place)
            rows[row].append(text)
        if room > length:
            insort(free, (room - length, row))
    return rows
