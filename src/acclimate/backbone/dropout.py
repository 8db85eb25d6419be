"""Dropout whose random numbers do not cost more than the layer they drop from.

On a CPU the dropout of torch draws one Bernoulli number for each value, which takes longer than the matrix product
before it. Here one 64-bit draw serves four values; the probability is then a multiple of 1 / 32,768, so that 0.1
becomes 0.100006. A value is dropped by a bitwise "and" on its bits: a product with a boolean mask takes five times as
long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

STEPS = 1 << 15
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a value of so many bytes."""
OF_TASKS = ("classifier", "qa", "seq_classif", "summary")
"""How the names of probabilities begin that only the heads of end tasks have."""


class _Dropout(torch.autograd.Function):
    """Cut values with a mask of bits and rescale; only the mask is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, cut: int) -> Tensor:
        """Drop each value of ``values`` with probability ``cut`` / 32,768."""
        ctx.keep, ctx.scale = _mask(values.shape, cut), STEPS / (STEPS - cut)
        return _and(values, ctx.keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on where the value was kept."""
        return _and(gradients[0], ctx.keep).mul_(ctx.scale), None


def _mask(shape: torch.Size, cut: int) -> Tensor:
    """Draw a mask of 16-bit integers: all bits zero with probability ``cut`` / 32,768, else all one."""
    count = shape.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    fifteen = draws.view(torch.int16)[:count].bitwise_right_shift_(1)  # from -16,384: a difference cannot overflow
    return fifteen.neg_().add_(cut - STEPS // 2 - 1).bitwise_right_shift_(15).view(shape)


def _and(values: Tensor, mask: Tensor) -> Tensor:
    kind = BITS[values.element_size()]
    return values.contiguous().view(kind).bitwise_and(mask.to(kind)).view(values.dtype)


def dropout(values: Tensor, probability: float) -> Tensor:
    """Drop values with a probability and scale up the rest, whatever the mode of the module.

    Args:
        values: Any shape.
        probability: In [0, 1); on a CPU it is rounded to a multiple of 1 / 32,768.
    """
    if probability <= 0:
        return values
    if values.device.type != "cpu" or probability >= 1:
        return nn.functional.dropout(values, probability, training=True)
    return _Dropout.apply(values, min(STEPS - 1, round(probability * STEPS)))


class CheapDropout(nn.Dropout):
    """``nn.Dropout`` with the cheap draws above."""

    def forward(self, values: Tensor) -> Tensor:
        """Drop in training, pass through in evaluation."""
        return dropout(values, self.p) if self.training else values


def dropout_names(config: PretrainedConfig) -> list[str]:
    """Return the entries of a configuration that hold a dropout probability of the encoder."""
    return [
        name
        for name, value in config.to_dict().items()
        if "dropout" in name and not name.startswith(OF_TASKS) and isinstance(value, float | int)
    ]


def dropout_rates(model: nn.Module) -> list[float]:
    """Return the dropout probabilities that the modules of a model have, each once, rising."""
    return sorted(set(_rates(model.modules())))


def _rates(modules: Iterable[nn.Module]) -> Iterable[float]:
    for module in modules:
        if isinstance(module, nn.Dropout):
            yield float(module.p)
        own = getattr(module, "attention_dropout", None)  # ModernBERT hands a number to the attention function
        if isinstance(own, float | int):
            yield float(own)


def cheapen_dropout(model: nn.Module) -> None:
    """Let every ``nn.Dropout`` of a model draw cheaply; weights, names and modes stay as they are."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = CheapDropout
