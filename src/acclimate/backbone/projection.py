"""The vocabulary projection, whose weight collects its gradient some rows at a time.

The gradient of a layer with one output for each word is as large as the embeddings. Where torch makes it anew for
every micro-batch and then adds it up, here a piece of it that fits into the cache is made and added at a time, and in
training once for several micro-batches (:mod:`acclimate.backbone.tables`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.backbone.lookup import collects_by_row
from acclimate.backbone.tables import add_product

MANY = 10_000
"""Outputs from which on a layer is worth it: vocabularies have more, feed-forward layers fewer."""


class _Projection(torch.autograd.Function):
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
        add_product(ctx.weight, rows, hidden.reshape(-1, hidden.shape[-1]))
        for_hidden = (rows @ ctx.weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        return for_hidden, None, rows.sum(0) if ctx.needs_input_grad[2] else None


class RowProjection(nn.Linear):
    """``nn.Linear`` with the gradient above; it is for leaf weights and ``backward()``, not ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Project."""
        if collects_by_row(self.weight) and self.weight.dtype == input.dtype:  # else autocast casts one of them
            return _Projection.apply(input, self.weight, self.bias)
        return super().forward(input)


def spare_projection(model: nn.Module) -> None:
    """Let plain linear layers on a CPU with very many outputs collect their gradients by row; all else stays."""
    for module in model.modules():
        if type(module) is nn.Linear and module.out_features >= MANY and module.weight.device.type == "cpu":
            module.__class__ = RowProjection
