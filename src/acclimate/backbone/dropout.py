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
from torch.autograd.function import once_differentiable
from transformers import PretrainedConfig

from acclimate.backbone.draws import random_key, random_words, signed

STEPS, LANES = 1 << 15, 4
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a value of so many bytes."""
OF_TASKS = ("classifier", "qa", "seq_classif", "summary")
"""How the names of probabilities begin that only the heads of end tasks have."""


class _Dropout(torch.autograd.Function):
    """Cut values with a mask of bits and rescale; the mask is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, cut: int, factor: float) -> Tensor:
        """Drop each value of ``values`` with probability ``cut`` / 32,768, and multiply the others with ``factor``."""
        mask = drop_mask(values.shape, cut, random_key())
        ctx.factor = factor
        ctx.save_for_backward(mask)
        return keep(values, mask).mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pass the gradient on where the value was kept."""
        return keep(gradients[0], *ctx.saved_tensors).mul_(ctx.factor), None, None


def drop_mask(shape: torch.Size, cut: int, key: int) -> Tensor:
    """Make a mask of 16-bit integers: all bits zero with probability ``cut`` / 32,768, else all one.

    Args:
        shape: Of the mask.
        cut: Of 32,768 cases how many drop a value.
        key: What the mask follows from (:func:`acclimate.backbone.draws.random_key`).
    """
    count = shape.numel()
    words = random_words(-(-count // LANES), key)
    # In each lane a number below 32,768; the sum with 32,768 - cut reaches the sign, and no neighbour, if it is kept.
    words.bitwise_and_(_in_lanes(STEPS - 1)).add_(_in_lanes(STEPS - cut))
    return words.view(torch.int16)[:count].bitwise_right_shift_(15).view(shape)


def _in_lanes(number: int) -> int:
    """Repeat a number below 65,536 in each lane of a word."""
    return signed(sum(number << (16 * lane) for lane in range(LANES)))


def keep(values: Tensor, mask: Tensor) -> Tensor:
    """Set values to zero where the mask, of :func:`drop_mask`, is zero."""
    kind = BITS[values.element_size()]
    return values.contiguous().view(kind).bitwise_and(mask.to(kind)).view(values.dtype)


def keep_(values: Tensor, mask: Tensor) -> None:
    """Do as :func:`keep`, in place; ``values`` must be contiguous."""
    kind = BITS[values.element_size()]
    values.view(kind).bitwise_and_(mask.to(kind))


def dropout(values: Tensor, probability: float) -> Tensor:
    """Drop values with a probability and scale up the rest, whatever the mode of the module.

    Args:
        values: Any shape.
        probability: In [0, 1]; on a CPU it is rounded to a multiple of 1 / 32,768.
    """
    if probability <= 0:
        return values
    if values.device.type != "cpu":
        return nn.functional.dropout(values, probability, training=True)
    return _Dropout.apply(values, *cut_and_factor(probability))


def cut_and_factor(probability: float) -> tuple[int, float]:
    """Return of 32,768 cases how many drop a value, and what the others are multiplied with."""
    cut = STEPS if probability >= 1 else min(STEPS - 1, round(probability * STEPS))
    return cut, STEPS / (STEPS - cut) if cut < STEPS else 0.0


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
