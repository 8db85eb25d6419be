"""Dropout whose random numbers do not cost more than the layer they drop from.

On a CPU the dropout of torch draws one Bernoulli number for each value, which takes longer than the matrix product
before it. Here one 64-bit draw serves four values; the probability is then a multiple of 1 / 32,768, so that 0.1
becomes 0.100006. A value is dropped by a bitwise "and" on its bits: a product with a boolean mask takes five times as
long.

Random bits by the million, for dropout on a CPU.

The generator of torch makes one number after the other on one core, which costs a training step more than its layer
normalisations. Here it makes one key for each draw, and a mixing function turns key and counter into a word of 64 bits
at any place, so that all cores work on it: SplitMix64 (Steele, Lea and Flood, 2014, "Fast Splittable Pseudorandom
Number Generators"), without its last shift, and with shifts that repeat the sign, which torch has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PretrainedConfig

WORD_BITS = 64
SPLITMIX_STRIDE, SPLITMIX_FIRST, SPLITMIX_SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of SplitMix64: what its counter advances by, and what it multiplies with."""
CHUNK = 1 << 16
"""Words that are made at a time: they and their counters stay in the cache."""


def random_key() -> int:
    """Draw what words follow from: 64 bits of the generator of torch, so of its seed."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def random_words(count: int, key: int) -> Tensor:
    """Make words of 64 random bits.

    Args:
        count: How many.
        key: What they follow from.

    Returns:
        (count,) int64.
    """
    words = torch.empty(count, dtype=torch.int64)
    shifted = torch.empty(min(count, CHUNK), dtype=torch.int64)
    for start in range(0, count, CHUNK):
        piece = words[start : start + CHUNK]
        torch.add(_counters()[: len(piece)], to_signed(key + start * SPLITMIX_STRIDE), out=piece)
        _mix(piece, shifted[: len(piece)])
    return words


def to_signed(number: int) -> int:
    """Return the integer of 64 bits, with a sign, that has the lowest 64 bits of ``number``."""
    return (number + (1 << (WORD_BITS - 1))) % (1 << WORD_BITS) - (1 << (WORD_BITS - 1))


def _mix(words: Tensor, room: Tensor) -> None:
    """Mix the bits of each word in place; ``room`` is as large and is overwritten."""
    for shift, factor in ((30, SPLITMIX_FIRST), (27, SPLITMIX_SECOND)):
        torch.bitwise_right_shift(words, shift, out=room)
        words.bitwise_xor_(room).mul_(to_signed(factor))


@cache
def _counters() -> Tensor:
    return torch.arange(CHUNK, dtype=torch.int64) * to_signed(SPLITMIX_STRIDE)


STEPS, LANES = 1 << 15, 4
INTEGER_TYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a value of so many bytes."""
TASK_HEAD_PREFIXES = ("classifier", "qa", "seq_classif", "summary")
"""How the names of probabilities begin that only the heads of end tasks have."""


class _Dropout(torch.autograd.Function):
    """Cut values with a mask of bits and rescale; the mask is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, cut: int, factor: float) -> Tensor:
        """Drop each value of ``values`` with probability ``cut`` / 32,768, and multiply the others with ``factor``."""
        mask = drop_mask(values.shape, cut, random_key())
        ctx.factor = factor
        ctx.save_for_backward(mask)
        return apply_mask(values, mask).mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pass the gradient on where the value was kept."""
        return apply_mask(gradients[0], *ctx.saved_tensors).mul_(ctx.factor), None, None


def drop_mask(shape: torch.Size, cut: int, key: int) -> Tensor:
    """Make a mask of 16-bit integers: all bits zero with probability ``cut`` / 32,768, else all one.

    Args:
        shape: Of the mask.
        cut: Of 32,768 cases how many drop a value.
        key: What the mask follows from (:func:`acclimate.kernels.dropout.random_key`).
    """
    count = shape.numel()
    words = random_words(-(-count // LANES), key)
    # In each lane a number below 32,768; the sum with 32,768 - cut reaches the sign, and no neighbour, if it is kept.
    words.bitwise_and_(_repeat_in_lanes(STEPS - 1)).add_(_repeat_in_lanes(STEPS - cut))
    return words.view(torch.int16)[:count].bitwise_right_shift_(15).view(shape)


def _repeat_in_lanes(number: int) -> int:
    """Repeat a number below 65,536 in each lane of a word."""
    return to_signed(sum(number << (16 * lane) for lane in range(LANES)))


def apply_mask(values: Tensor, mask: Tensor) -> Tensor:
    """Set values to zero where the mask, of :func:`drop_mask`, is zero."""
    kind = INTEGER_TYPES[values.element_size()]
    return values.contiguous().view(kind).bitwise_and(mask.to(kind)).view(values.dtype)


def apply_mask_(values: Tensor, mask: Tensor) -> None:
    """Do as :func:`keep`, in place; ``values`` must be contiguous."""
    kind = INTEGER_TYPES[values.element_size()]
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
    return _Dropout.apply(values, *threshold_and_scale(probability))


def threshold_and_scale(probability: float) -> tuple[int, float]:
    """Return of 32,768 cases how many drop a value, and what the others are multiplied with."""
    cut = STEPS if probability >= 1 else min(STEPS - 1, round(probability * STEPS))
    return cut, STEPS / (STEPS - cut) if cut < STEPS else 0.0


class FastDropout(nn.Dropout):
    """``nn.Dropout`` with the cheap draws above."""

    def forward(self, values: Tensor) -> Tensor:
        """Drop in training, pass through in evaluation."""
        return dropout(values, self.p) if self.training else values


def dropout_names(config: PretrainedConfig) -> list[str]:
    """Return the entries of a configuration that hold a dropout probability of the encoder."""
    return [
        name
        for name, value in config.to_dict().items()
        if "dropout" in name and not name.startswith(TASK_HEAD_PREFIXES) and isinstance(value, float | int)
    ]


def dropout_rates(model: nn.Module) -> list[float]:
    """Return the dropout probabilities that the modules of a model have, each once, rising."""
    return sorted(set(_iter_dropout_rates(model.modules())))


def _iter_dropout_rates(modules: Iterable[nn.Module]) -> Iterable[float]:
    for module in modules:
        if isinstance(module, nn.Dropout):
            yield float(module.p)
        own = getattr(module, "attention_dropout", None)  # ModernBERT hands a number to the attention function
        if isinstance(own, float | int):
            yield float(own)


def replace_dropout(model: nn.Module) -> None:
    """Let every ``nn.Dropout`` of a model draw cheaply; weights, names and modes stay as they are."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
