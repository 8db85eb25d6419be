"""Gradients of embeddings and of the vocabulary projection, added in place and once per step.

The gradient of a layer with one row per word is as large as a small model. Autograd makes it anew for each
micro-batch: for ``nn.Embedding``, a table of zeros with a few rows filled in. What it is made of is small: the rows
that were looked up, or the logit gradients and hidden states at a few positions. Here these are collected until the
end of a step, or until they take as much memory as the gradient, and then added to ``weight.grad``.
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
"""Gradient values made at a time, so that they stay in the cache."""
MIN_OUTPUTS = 10_000
"""Outputs from which a linear layer is replaced. Vocabularies are larger, feed-forward layers smaller."""


class _PendingGradient:
    """The parts that the gradient of one weight will be computed from."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.products: list[tuple[Tensor, Tensor]] = []
        self.lookups: list[tuple[Tensor, Tensor]] = []

    @property
    def is_large(self) -> bool:
        """Whether the parts take as much memory as the gradient."""
        held = sum(part.nbytes for pair in (*self.products, *self.lookups) for part in pair)
        return held >= master_weight(self.weight).nbytes

    def flush(self) -> None:
        """Add all parts to the gradient."""
        if self.products:
            _add_projection_grads(self.weight, self.products)
        if self.lookups:
            total, initialised = master_grad(self.weight)
            if not initialised:
                total.zero_()
            for ids, rows in self.lookups:
                total.index_add_(0, ids, rows.to(total.dtype))
        self.products, self.lookups = [], []


_pending: dict[int, _PendingGradient] | None = None


@contextmanager
def deferred_vocabulary_grads() -> Iterator[None]:
    """Return a context in which these gradients are collected. They are complete when it ends without an error."""
    global _pending
    before, _pending = _pending, {}
    try:
        yield
        with torch.no_grad():
            for pending in _pending.values():
                pending.flush()
    finally:
        _pending = before


def add_projection_grad(weight: Tensor, logit_grad: Tensor, hidden: Tensor) -> None:
    """Add ``logit_grad^T hidden`` to the gradient of a weight, now or at the end of the context.

    Args:
        weight: The weight (words, width), or a shadow copy of it.
        logit_grad: (positions, words). Neither it nor ``hidden`` may change afterwards.
        hidden: (positions, width).
    """
    if not len(logit_grad) and master_weight(weight).grad is not None:
        return
    pending = _pending_for(weight)
    pending.products.append((logit_grad, hidden))
    _flush_if_large(pending)


def add_embedding_grad(weight: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows (places, width) to the gradient rows ``ids`` (places,), now or at the end of the context."""
    pending = _pending_for(weight)
    pending.lookups.append((ids, rows))
    _flush_if_large(pending)


def _pending_for(weight: Tensor) -> _PendingGradient:
    """Return what is pending for a weight; the entry holds the weight, so that its id is not reused."""
    if _pending is None:
        return _PendingGradient(weight)
    return _pending.setdefault(id(master_weight(weight)), _PendingGradient(weight))


def _flush_if_large(pending: _PendingGradient) -> None:
    if _pending is None or pending.is_large:
        pending.flush()


def _add_projection_grads(weight: Tensor, products: list[tuple[Tensor, Tensor]]) -> None:
    """Add the sum of the products in the precision of the gradient, some rows at a time."""
    total, initialised = master_grad(weight)
    hidden = torch.cat([states for _, states in products])
    height = max(1, CHUNK // weight.shape[1])
    for start in range(0, len(weight), height):
        logit_grad = torch.cat([part[:, start : start + height] for part, _ in products])
        product, rows = logit_grad.t() @ hidden, total[start : start + height]
        rows.add_(product) if initialised else rows.copy_(product)


class _EmbeddingFunction(torch.autograd.Function):
    """An embedding lookup whose backward adds to ``weight.grad`` and returns no gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        flat, rows = ids.reshape(-1), gradients[0].reshape(-1, gradients[0].shape[-1])
        if ctx.padding is not None:
            real = flat != ctx.padding
            flat, rows = flat[real], rows[real]
        add_embedding_grad(ctx.weight, flat, rows)
        return None, None, None


class _ProjectionFunction(torch.autograd.Function):
    """A linear layer whose backward adds to ``weight.grad`` and returns no gradient for the weight."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.weight = weight
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (hidden,) = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1])
        add_projection_grad(ctx.weight, rows, hidden.reshape(-1, hidden.shape[-1]))
        hidden_grad = (rows @ ctx.weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        return hidden_grad, None, rows.sum(0) if ctx.needs_input_grad[2] else None


def accumulates_in_place(weight: Tensor) -> bool:
    """Return whether autograd would add the gradient of a weight to its ``grad``, and the weight is on a CPU."""
    return weight.device.type == "cpu" and weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


class RowEmbedding(nn.Embedding):
    """``nn.Embedding`` with in-place gradients: for leaf weights and ``backward()``, not for ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows of ``input``."""
        if accumulates_in_place(self.weight):
            return _EmbeddingFunction.apply(self.weight, input, self.padding_idx)
        return super().forward(input)


class RowProjection(nn.Linear):
    """``nn.Linear`` with in-place weight gradients: for leaf weights and ``backward()``, not for ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer."""
        if accumulates_in_place(self.weight) and self.weight.dtype == input.dtype:  # else autocast casts one of them
            return _ProjectionFunction.apply(input, self.weight, self.bias)
        return super().forward(input)


def faster_layer(module: nn.Module) -> type[nn.Module] | None:
    """Return the class that replaces a plain embedding, or a plain linear layer with very many outputs; else None."""
    if type(module) is nn.Embedding:
        plain = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
        return RowEmbedding if plain else None
    return RowProjection if type(module) is nn.Linear and module.out_features >= MIN_OUTPUTS else None
