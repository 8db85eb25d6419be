"""Linear layers with lowered weights, whose gradients are added up in float32 without a stop in bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from acclimate.backbone.products import has_fast_products, multiply, put_product
from acclimate.backbone.stand_in import gradient_of, is_stand_in

LEAST = 512
"""Inputs and outputs from which on a layer is worth it: with 384, calls from Python cost what the products save."""


class _Linear(torch.autograd.Function):
    """A linear layer; the backward adds to ``grad`` of what the weight stands in for, and reports none of its own."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return (..., outputs) for hidden (..., width)."""
        ctx.weight, ctx.shape = weight, hidden.shape
        if ctx.needs_input_grad[1]:  # of a frozen layer nobody asks for it
            ctx.save_for_backward(hidden)
        out = multiply(hidden.reshape(-1, hidden.shape[-1]), weight.t(), bias)
        return out.view(*hidden.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        """Add the gradient of the weight, and return those of the input and the bias."""
        slopes = gradients[0].reshape(-1, gradients[0].shape[-1])
        if ctx.needs_input_grad[1]:
            (hidden,) = ctx.saved_tensors
            total, there = gradient_of(ctx.weight)
            put_product(total, slopes, hidden.reshape(-1, hidden.shape[-1]), add=there)
        for_hidden = multiply(slopes, ctx.weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return for_hidden, None, slopes.sum(0) if ctx.needs_input_grad[2] else None


class LoweredLinear(nn.Linear):
    """``nn.Linear`` that does so where its weight stands in for another; for ``backward()``, not ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Project."""
        plain = type(self.weight) is nn.Parameter  # and no shard of one
        if plain and is_stand_in(self.weight) and self.weight.dtype == input.dtype and has_fast_products():
            projected: Tensor = _Linear.apply(input, self.weight, self.bias)
            return projected
        return super().forward(input)


def spare_linear(model: nn.Module) -> None:
    """Let plain linear layers on a CPU, if they are large, work so with lowered weights; all else stays as it is."""
    for module in model.modules():
        large = type(module) is nn.Linear and min(module.weight.shape) >= LEAST
        if large and module.weight.device.type == "cpu":
            module.__class__ = LoweredLinear
