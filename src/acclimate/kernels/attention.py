"""Dropout and eager attention on a CPU.

Torch's dropout draws one Bernoulli number per value on one core, which takes longer than the matrix product before it.
Here one 64-bit word serves four values, so the probability is rounded to a multiple of 1 / 32,768 (0.1 becomes
0.100006). The words come from SplitMix64 (Steele, Lea and Flood, 2014, "Fast Splittable Pseudorandom Number
Generators"), without the last shift and with arithmetic shifts, the only ones that torch offers. A word depends only
on its key and its index, so all cores can work in parallel. The key comes from torch's generator and follows its seed.

Attention has one weight per head and pair of tokens, so a pass over the weights costs as much as the matrix products.
The custom backward makes fewer passes than autograd: the factors (of the scores and of dropout) are applied inside the
products, the bias is the initial value of the first product, and only the softmax and the dropout mask are saved.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WORD_BITS = 64
SPLITMIX_STRIDE, SPLITMIX_FIRST, SPLITMIX_SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64: the increment of its counter and its two multipliers."""
CHUNK = 1 << 16
"""Words generated at a time: they and their counters stay in the cache."""
RESOLUTION, LANES = 1 << 15, 4
"""Range of the random 15-bit number that decides whether one value is dropped, and how many of them fit in a word."""
INTEGER_TYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by the bytes of a value."""


def random_key() -> int:
    """Draw a 64-bit key from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def random_words(count: int, key: int) -> Tensor:
    """Return ``count`` words of 64 random bits that follow from ``key``: (count,) int64."""
    words = torch.empty(count, dtype=torch.int64)
    buffer = torch.empty(min(count, CHUNK), dtype=torch.int64)
    for start in range(0, count, CHUNK):
        chunk = words[start : start + CHUNK]
        torch.add(_counters()[: len(chunk)], to_signed(key + start * SPLITMIX_STRIDE), out=chunk)
        _mix(chunk, buffer[: len(chunk)])
    return words


def to_signed(number: int) -> int:
    """Return the signed 64-bit integer with the lowest 64 bits of ``number``."""
    return (number + (1 << (WORD_BITS - 1))) % (1 << WORD_BITS) - (1 << (WORD_BITS - 1))


def _mix(words: Tensor, buffer: Tensor) -> None:
    """Mix the bits of each word in place; ``buffer`` has the same shape and is overwritten."""
    for shift, factor in ((30, SPLITMIX_FIRST), (27, SPLITMIX_SECOND)):
        torch.bitwise_right_shift(words, shift, out=buffer)
        words.bitwise_xor_(buffer).mul_(to_signed(factor))


@cache
def _counters() -> Tensor:
    return torch.arange(CHUNK, dtype=torch.int64) * to_signed(SPLITMIX_STRIDE)


def drop_mask(shape: torch.Size, threshold: int, key: int) -> Tensor:
    """Return a mask of 16-bit integers: 0 with probability ``threshold`` / 32,768, else -1 (all bits set).

    Args:
        shape: Shape of the mask.
        threshold: See :func:`threshold_and_scale`.
        key: See :func:`random_key`.
    """
    count = shape.numel()
    words = random_words(-(-count // LANES), key)
    # Each lane holds a number below 32,768. Adding 32,768 - threshold sets its sign bit if the value is kept, and
    # never overflows into the next lane.
    words.bitwise_and_(_repeat_in_lanes(RESOLUTION - 1)).add_(_repeat_in_lanes(RESOLUTION - threshold))
    return words.view(torch.int16)[:count].bitwise_right_shift_(15).view(shape)


def _repeat_in_lanes(number: int) -> int:
    """Repeat a number below 65,536 in each lane of a word."""
    return to_signed(sum(number << (16 * lane) for lane in range(LANES)))


def apply_mask(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values`` with zeros where ``mask`` is 0; a bitwise "and" is five times as fast as a product."""
    kind = INTEGER_TYPES[values.element_size()]
    return values.contiguous().view(kind).bitwise_and(mask.to(kind)).view(values.dtype)


def apply_mask_(values: Tensor, mask: Tensor) -> None:
    """Set contiguous ``values`` to zero, in place, where ``mask`` is 0."""
    kind = INTEGER_TYPES[values.element_size()]
    values.view(kind).bitwise_and_(mask.to(kind))


def threshold_and_scale(probability: float) -> tuple[int, float]:
    """Return how many of the 32,768 numbers drop a value, and the factor on the values that are kept."""
    threshold = RESOLUTION if probability >= 1 else min(RESOLUTION - 1, round(probability * RESOLUTION))
    return threshold, RESOLUTION / (RESOLUTION - threshold) if threshold < RESOLUTION else 0.0


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, threshold: int, scale: float) -> Tensor:
        """Drop each value with probability ``threshold`` / 32,768 and multiply the others by ``scale``."""
        mask = drop_mask(values.shape, threshold, random_key())
        ctx.scale = scale
        ctx.save_for_backward(mask)
        return apply_mask(values, mask).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return apply_mask(gradients[0], *ctx.saved_tensors).mul_(ctx.scale), None, None


def dropout(values: Tensor, probability: float) -> Tensor:
    """Drop values with a probability and scale up the rest.

    Args:
        values: Any shape.
        probability: In [0, 1]; on a CPU it is rounded to a multiple of 1 / 32,768.
    """
    if probability <= 0:
        return values
    if values.device.type != "cpu":  # the model has moved since its layers were replaced
        return nn.functional.dropout(values, probability, training=True)
    return _Dropout.apply(values, *threshold_and_scale(probability))


class FastDropout(nn.Dropout):
    """``nn.Dropout`` that draws its masks with :func:`drop_mask`."""

    def forward(self, values: Tensor) -> Tensor:
        """Drop in training mode, pass through in evaluation mode."""
        if torch.compiler.is_compiling():
            return super().forward(values)
        return dropout(values, self.p) if self.training else values


SOFTMAX_CHUNK = 1 << 17
"""Scores per softmax call, so that their float32 copy stays in the cache."""


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
) -> Tensor:
    """Return dropout(softmax(scaling * query key^T + bias)) value (Vaswani et al., 2017, Eq. 1).

    Args:
        query: (rows, heads, tokens, head width).
        key: (rows, heads, keys, head width).
        value: Same shape as ``key``.
        bias: Added to the scores, (rows or 1, heads or 1, tokens, keys). It gets no gradient. None for zero.
        scaling: Factor on the scores.
        dropout: Probability that an attention weight is dropped.

    Returns:
        Same shape as ``query``. Differentiable once.
    """
    context: Tensor = _Attention.apply(query, key, value, bias, scaling, *threshold_and_scale(dropout))
    return context


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        scaling: float,
        threshold: int,
        scale: float,
    ) -> Tensor:
        """Compute the attention; ``threshold`` and ``scale`` come from :func:`threshold_and_scale`."""
        ctx.scaling, ctx.scale, ctx.heads = scaling, scale, query.shape[1]
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))
        weights = query.new_empty(len(query), query.shape[1], key.shape[1])
        if bias is not None:
            weights.unflatten(0, (-1, ctx.heads)).copy_(bias)
        weights.baddbmm_(query, key.transpose(1, 2), beta=float(bias is not None), alpha=scaling)
        _softmax_(weights)
        mask = drop_mask(weights.shape, threshold, random_key()) if threshold else None
        ctx.save_for_backward(query, key, value, weights, mask)
        return _scaled_bmm(_apply_dropout(weights, mask), value, scale).unflatten(0, (-1, ctx.heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        context_grad = gradients[0].flatten(0, 1)
        value_grad = _scaled_bmm(_apply_dropout(weights, mask).transpose(1, 2), context_grad, ctx.scale)
        score_grad = _scaled_bmm(context_grad, value.transpose(1, 2), ctx.scale)
        if mask is not None:
            apply_mask_(score_grad, mask)
        torch._softmax_backward_data(score_grad, weights, -1, weights.dtype, grad_input=score_grad)
        query_grad = _scaled_bmm(score_grad, key, ctx.scaling)
        key_grad = _scaled_bmm(score_grad.transpose(1, 2), query, ctx.scaling)
        parts = query_grad, key_grad, value_grad
        return *(part.unflatten(0, (-1, ctx.heads)) for part in parts), *[None] * 4


def _softmax_(scores: Tensor) -> None:
    """Turn scores into weights in place, computed in float32 in chunks that stay in the cache.

    Torch's bfloat16 kernel takes twice as long where the width is not a multiple of 32.
    """
    if scores.element_size() >= 4:
        torch.softmax(scores, dim=-1, out=scores)
        return
    buffer = torch.empty(0, dtype=torch.float32)
    for chunk in scores.split(max(1, SOFTMAX_CHUNK // max(1, scores[:1].numel()))):
        exact = buffer.resize_(chunk.shape).copy_(chunk)
        chunk.copy_(torch.softmax(exact, dim=-1, out=exact))


def _apply_dropout(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else apply_mask(weights, mask)


def _scaled_bmm(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Return ``factor`` times the product of each pair of matrices."""
    out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return out.baddbmm_(left, right, beta=0, alpha=factor)
