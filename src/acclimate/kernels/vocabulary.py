"""Embedding lookups whose gradient touches only the rows that were read.

The gradient of ``nn.Embedding`` is a table of zeros as large as the vocabulary with a few rows filled in, made and
added up anew for every micro-batch. For a small model that costs as much as a layer. Here the rows are added straight
to the gradient that is there, in training at the end of a step (:mod:`acclimate.kernels.vocabulary`).

The vocabulary projection, whose weight collects its gradient some rows at a time.

The gradient of a layer with one output for each word is as large as the embeddings. Where torch makes it anew for
every micro-batch and then adds it up, here a piece of it that fits into the cache is made and added at a time, and in
training once for several micro-batches (:mod:`acclimate.kernels.vocabulary`).

Gradients of large tables, the vocabulary above all, made once for several micro-batches.

A table has a row for each word, so its gradient is as large as a small model. To add to it for every micro-batch
costs passes over all of it, and products over the few positions that a micro-batch chooses. What the gradient is made
of is small: the slopes of the logits with the states that they came from, and the rows of lookups. Both wait until a
step has been read, or until they take as much memory as the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.kernels.mixed_precision import master_grad, master_weight

CHUNK = 1 << 20
"""Values of the gradient that are made at a time: they stay in the cache."""


class _PendingGradient:
    """What the gradient of one table will be made of."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.products: list[tuple[Tensor, Tensor]] = []
        self.lookups: list[tuple[Tensor, Tensor]] = []

    @property
    def is_large(self) -> bool:
        """Whether it takes as much memory as the gradient."""
        held = sum(part.nbytes for pair in (*self.products, *self.lookups) for part in pair)
        return held >= master_weight(self.weight).nbytes

    def flush(self) -> None:
        """Add it to the gradient."""
        if self.products:
            _add_projection_grads(self.weight, self.products)
        if self.lookups:
            total, there = master_grad(self.weight)
            if not there:
                total.zero_()
            for ids, rows in self.lookups:
                total.index_add_(0, ids, rows.to(total.dtype))
        self.products, self.lookups = [], []


_pending: dict[int, _PendingGradient] | None = None


@contextmanager
def deferred_vocabulary_grads() -> Iterator[None]:
    """Return a context in which gradients of tables wait; they are there when it ends without an error."""
    global _pending
    before, _pending = _pending, {}
    try:
        yield
        with torch.no_grad():
            for waiting in _pending.values():
                waiting.flush()
    finally:
        _pending = before


def add_projection_grad(weight: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """Add ``slopes`` transposed times ``hidden`` to the gradient of a table, now or at the end of the context.

    Args:
        weight: The table (words, width), or what stands in for it.
        slopes: (positions, words); neither it nor ``hidden`` may change any more.
        hidden: (positions, width).
    """
    if not len(slopes) and master_weight(weight).grad is not None:
        return
    waiting = _pending_for(weight)
    waiting.products.append((slopes, hidden))
    _flush_if_large(waiting)


def add_embedding_grad(weight: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows (places, width) to those that ``ids`` (places,) names, as and when :func:`add_product` does."""
    waiting = _pending_for(weight)
    waiting.lookups.append((ids, rows))
    _flush_if_large(waiting)


def _pending_for(weight: Tensor) -> _PendingGradient:
    """Return what waits for a table; it holds the table, so that no other gets its id."""
    return (
        _PendingGradient(weight)
        if _pending is None
        else _pending.setdefault(id(master_weight(weight)), _PendingGradient(weight))
    )


def _flush_if_large(waiting: _PendingGradient) -> None:
    if _pending is None or waiting.is_large:
        waiting.flush()


def _add_projection_grads(weight: Tensor, products: list[tuple[Tensor, Tensor]]) -> None:
    """Add the sum of the products, in the precision of the gradient, some rows at a time."""
    total, there = master_grad(weight)
    hidden = torch.cat([states for _, states in products])
    height = max(1, CHUNK // weight.shape[1])
    for start in range(0, len(weight), height):
        slopes = torch.cat([some[:, start : start + height] for some, _ in products])
        part, rows = slopes.t() @ hidden, total[start : start + height]
        rows.add_(part) if there else rows.copy_(part)


class _EmbeddingFunction(torch.autograd.Function):
    """Take rows of a weight; the backward adds to ``grad`` of that weight and reports no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        """Return (..., width) for ids (...)."""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """Add the gradient of each row, in the precision of the gradient that collects it."""
        (ids,) = ctx.saved_tensors
        flat, rows = ids.reshape(-1), gradients[0].reshape(-1, gradients[0].shape[-1])
        if ctx.padding is not None:
            real = flat != ctx.padding
            flat, rows = flat[real], rows[real]
        add_embedding_grad(ctx.weight, flat, rows)
        return None, None, None


def accumulates_in_place(weight: Tensor) -> bool:
    """Say whether the gradient of a weight, wanted now, can be added straight to ``grad``; it may have moved since."""
    return weight.device.type == "cpu" and weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


class RowEmbedding(nn.Embedding):
    """``nn.Embedding`` with the gradient above; it is for leaf weights and ``backward()``, not ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Look rows up."""
        if accumulates_in_place(self.weight):
            return _EmbeddingFunction.apply(self.weight, input, self.padding_idx)
        return super().forward(input)


def replace_embeddings(model: nn.Module) -> None:
    """Let the plain embeddings of a model on a CPU collect their gradients by row; all else stays as it is."""
    for module in model.modules():
        plain = type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq
        if plain and not module.sparse and module.weight.device.type == "cpu":
            module.__class__ = RowEmbedding


MIN_OUTPUTS = 10_000
"""Outputs from which on a layer is worth it: vocabularies have more, feed-forward layers fewer."""


class _ProjectionFunction(torch.autograd.Function):
    """A linear layer; the backward adds to ``grad`` of the weight and reports no gradient of its own for it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return (..., outputs) for hidden (..., width)."""
        ctx.save_for_backward(hidden)
        ctx.weight = weight
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        """Add the gradient of the weight, in the precision of the gradient that collects it."""
        (hidden,) = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1])
        add_projection_grad(ctx.weight, rows, hidden.reshape(-1, hidden.shape[-1]))
        for_hidden = (rows @ ctx.weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        return for_hidden, None, rows.sum(0) if ctx.needs_input_grad[2] else None


class RowProjection(nn.Linear):
    """``nn.Linear`` with the gradient above; it is for leaf weights and ``backward()``, not ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Project."""
        if accumulates_in_place(self.weight) and self.weight.dtype == input.dtype:  # else autocast casts one of them
            return _ProjectionFunction.apply(input, self.weight, self.bias)
        return super().forward(input)


def replace_projections(model: nn.Module) -> None:
    """Let plain linear layers on a CPU with very many outputs collect their gradients by row; all else stays."""
    for module in model.modules():
        if type(module) is nn.Linear and module.out_features >= MIN_OUTPUTS and module.weight.device.type == "cpu":
            module.__class__ = RowProjection
