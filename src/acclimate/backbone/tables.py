"""Gradients of large tables, the vocabulary above all, made once for several micro-batches.

A table has a row for each word, so its gradient is as large as a small model. To add to it for every micro-batch
costs passes over all of it, and products over the few positions that a micro-batch chooses. What the gradient is made
of is small: the slopes of the logits with the states that they came from, and the rows of lookups. Both wait until a
step has been read, or until they take as much memory as the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from acclimate.backbone.stand_in import gradient_of, master

CHUNK = 1 << 20
"""Values of the gradient that are made at a time: they stay in the cache."""


class _Waiting:
    """What the gradient of one table will be made of."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.products: list[tuple[Tensor, Tensor]] = []
        self.lookups: list[tuple[Tensor, Tensor]] = []

    @property
    def is_large(self) -> bool:
        """Whether it takes as much memory as the gradient."""
        held = sum(part.nbytes for pair in (*self.products, *self.lookups) for part in pair)
        return held >= master(self.weight).nbytes

    def settle(self) -> None:
        """Add it to the gradient."""
        if self.products:
            _add_products(self.weight, self.products)
        if self.lookups:
            total, there = gradient_of(self.weight)
            if not there:
                total.zero_()
            for ids, rows in self.lookups:
                total.index_add_(0, ids, rows.to(total.dtype))
        self.products, self.lookups = [], []


_waiting: dict[int, _Waiting] | None = None


@contextmanager
def collected_tables() -> Iterator[None]:
    """Return a context in which gradients of tables wait; they are there when it ends without an error."""
    global _waiting
    before, _waiting = _waiting, {}
    try:
        yield
        with torch.no_grad():
            for waiting in _waiting.values():
                waiting.settle()
    finally:
        _waiting = before


def add_product(weight: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """Add ``slopes`` transposed times ``hidden`` to the gradient of a table, now or at the end of the context.

    Args:
        weight: The table (words, width), or what stands in for it.
        slopes: (positions, words); neither it nor ``hidden`` may change any more.
        hidden: (positions, width).
    """
    if not len(slopes) and master(weight).grad is not None:
        return
    waiting = _of(weight)
    waiting.products.append((slopes, hidden))
    _settle_if_due(waiting)


def add_rows(weight: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows (places, width) to those that ``ids`` (places,) names, as and when :func:`add_product` does."""
    waiting = _of(weight)
    waiting.lookups.append((ids, rows))
    _settle_if_due(waiting)


def _of(weight: Tensor) -> _Waiting:
    """Return what waits for a table; it holds the table, so that no other gets its id."""
    return _Waiting(weight) if _waiting is None else _waiting.setdefault(id(master(weight)), _Waiting(weight))


def _settle_if_due(waiting: _Waiting) -> None:
    if _waiting is None or waiting.is_large:
        waiting.settle()


def _add_products(weight: Tensor, products: list[tuple[Tensor, Tensor]]) -> None:
    """Add the sum of the products, in the precision of the gradient, some rows at a time."""
    total, there = gradient_of(weight)
    hidden = torch.cat([states for _, states in products])
    height = max(1, CHUNK // weight.shape[1])
    for start in range(0, len(weight), height):
        slopes = torch.cat([some[:, start : start + height] for some, _ in products])
        part, rows = slopes.t() @ hidden, total[start : start + height]
        rows.add_(part) if there else rows.copy_(part)
