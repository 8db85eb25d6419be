"""Attention step by step, with a backward of its own: fewer passes over the weights than operation by operation.

The attention weights have a value for each pair of tokens and head, so that on a CPU passes over them cost as much as
the matrix products. Here factors (of the scores, of dropout) ride on the products, the bias is what the first product
is added to, and of the weights only the softmax and the bits of dropout are kept for the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.kernels.dropout import apply_mask, apply_mask_, drop_mask, random_key, threshold_and_scale

SOFTMAX_CHUNK = 1 << 17
"""Scores whose softmax is computed at a time."""


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
        value: As ``key``.
        bias: What is added to the scores, (rows or 1, heads or 1, tokens, keys), without a gradient; or None.
        scaling: Factor on the scores.
        dropout: Probability with which a weight is dropped.

    Returns:
        As ``query``; it can be differentiated once.
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
        cut: int,
        factor: float,
    ) -> Tensor:
        """``cut`` is for :func:`drop_mask`, ``factor`` what the weights that are left are multiplied with."""
        ctx.scaling, ctx.factor, ctx.heads = scaling, factor, query.shape[1]
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))
        weights = query.new_empty(len(query), query.shape[1], key.shape[1])
        if bias is not None:
            weights.unflatten(0, (-1, ctx.heads)).copy_(bias)
        weights.baddbmm_(query, key.transpose(1, 2), beta=float(bias is not None), alpha=scaling)
        _softmax_(weights)
        mask = drop_mask(weights.shape, cut, random_key()) if cut else None
        ctx.save_for_backward(query, key, value, weights, mask)
        return _scaled_bmm(_apply_dropout(weights, mask), value, factor).unflatten(0, (-1, ctx.heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        gradient = gradients[0].flatten(0, 1)
        value_slope = _scaled_bmm(_apply_dropout(weights, mask).transpose(1, 2), gradient, ctx.factor)
        slope = _scaled_bmm(gradient, value.transpose(1, 2), ctx.factor)
        if mask is not None:
            apply_mask_(slope, mask)
        torch._softmax_backward_data(slope, weights, -1, weights.dtype, grad_input=slope)
        query_slope = _scaled_bmm(slope, key, ctx.scaling)
        key_slope = _scaled_bmm(slope.transpose(1, 2), query, ctx.scaling)
        parts = query_slope, key_slope, value_slope
        return *(part.unflatten(0, (-1, ctx.heads)) for part in parts), *[None] * 4


def _softmax_(scores: Tensor) -> None:
    """Turn scores into weights in place, in float32, some matrices at a time that stay in the cache.

    The kernel for bfloat16 takes twice as long where the width is no multiple of 32.
    """
    if scores.element_size() >= 4:  # it has the digits itself
        torch.softmax(scores, dim=-1, out=scores)
        return
    room = torch.empty(0, dtype=torch.float32)
    for some in scores.split(max(1, SOFTMAX_CHUNK // max(1, scores[:1].numel()))):
        exact = room.resize_(some.shape).copy_(some)
        some.copy_(torch.softmax(exact, dim=-1, out=exact))


def _apply_dropout(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else apply_mask(weights, mask)


def _scaled_bmm(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Return ``factor`` times the product of each pair of matrices."""
    out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return out.baddbmm_(left, right, beta=0, alpha=factor)
