"""Cross-entropy over a vocabulary without tables in float32 as large as the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_ROWS = 32
"""Rows whose distributions are computed at a time."""


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the negative log-probabilities of ``labels``.

    On a CPU no table in float32 is kept, where torch keeps three; the gradient has the precision of the logits.
    Elsewhere torch does it.

    Args:
        logits: (items or more, classes); rows beyond the labels count for nothing.
        labels: Classes (items,).

    Returns:
        A scalar in float32, in nats; 0 where there are no items. It can be differentiated once.
    """
    if logits.device.type != "cpu":
        return nn.functional.cross_entropy(logits[: len(labels)].float(), labels, reduction="sum")
    total: Tensor = _CrossEntropy.apply(logits, labels)
    return total


class _CrossEntropy(torch.autograd.Function):
    """The gradient of an item is its distribution, less one at its label."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        slope = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float32)
        for start in range(0, len(labels), CHUNK_ROWS):
            some = slice(start, min(start + CHUNK_ROWS, len(labels)))
            label = labels[some, None]
            logarithms = torch.log_softmax(logits[some], dim=-1, dtype=torch.float32)
            total -= logarithms.gather(1, label).sum()
            if slope is not None:
                less = torch.full(label.shape, -1.0)
                slope[some] = logarithms.exp_().scatter_add_(1, label, less)
        if slope is not None:
            slope[len(labels) :] = 0
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0].to(slope.dtype), None
