"""Packing texts into rows by best fit."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


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
