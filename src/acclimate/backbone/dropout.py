"""Dropout whose random numbers do not cost more than the layer they drop from.

On a CPU the dropout of torch draws one Bernoulli number for each value, which takes longer than the matrix product
before it. Here one 64-bit draw serves four values; the probability is then a multiple of 1 / 65,536, so that 0.1
becomes 0.100006.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

STEPS = 1 << 16


class _Dropout(torch.autograd.Function):
    """Multiply by a boolean mask and rescale; only the mask is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, cut: int) -> Tensor:
        """Drop each value of ``values`` with probability ``cut`` / 65,536."""
        count = values.numel()
        bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = (bits.view(torch.int16)[:count] >= cut - STEPS // 2).view(values.shape)
        ctx.save_for_backward(keep)
        ctx.scale = STEPS / (STEPS - cut)
        return values.mul(keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on where the value was kept."""
        (keep,) = ctx.saved_tensors
        return gradients[0].mul(keep).mul_(ctx.scale), None


def dropout(values: Tensor, probability: float) -> Tensor:
    """Drop values with a probability and scale up the rest, whatever the mode of the module.

    Args:
        values: Any shape.
        probability: In [0, 1); on a CPU it is rounded to a multiple of 1 / 65,536.
    """
    if probability <= 0:
        return values
    if values.device.type != "cpu" or probability >= 1:
        return nn.functional.dropout(values, probability, training=True)
    return _Dropout.apply(values, round(probability * STEPS))


class CheapDropout(nn.Dropout):
    """``nn.Dropout`` with the cheap draws above."""

    def forward(self, values: Tensor) -> Tensor:
        """Drop in training, pass through in evaluation."""
        return dropout(values, self.p) if self.training else values


def cheapen_dropout(model: nn.Module) -> None:
    """Let every ``nn.Dropout`` of a model draw cheaply; weights, names and modes stay as they are."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = CheapDropout
