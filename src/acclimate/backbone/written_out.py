"""Attention step by step, with a backward of its own: fewer passes over the weights than operation by operation.

The attention weights have a value for each pair of tokens and head, so that on a CPU passes over them cost as much as
the matrix products. Here factors (of the scores, of dropout) ride on the products, the bias is what the first product
is added to, and of the weights only the softmax and the bits of dropout are kept for the backward. Where they are
compiled (:mod:`acclimate.backbone.compiled`) the passes are one, and the bits are made again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.backbone.draws import random_key
from acclimate.backbone.dropout import cut_and_factor, drop_mask, keep, keep_
from acclimate.backbone.head_layout import merge_heads, split_heads
from acclimate.backbone.passes import passes_for
from acclimate.backbone.unpadded import Unpadded

PIECE = 1 << 17
"""Scores whose softmax is computed at a time."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    unpadded: Unpadded | None = None,
) -> Tensor:
    """Return dropout(softmax(scaling * query key^T + bias)) value (Vaswani et al., 2017, Eq. 1).

    Args:
        query: (rows, heads, tokens, head width), or (1, heads, kept, head width) where padding was left out.
        key: (rows, heads, keys, head width), or as the query where padding was left out.
        value: As ``key``.
        bias: What is added to the scores, (rows or 1, heads or 1, tokens, keys), without a gradient; or None.
        scaling: Factor on the scores.
        dropout: Probability with which a weight is dropped.
        unpadded: How to put padding back for as long as tokens attend, if it was left out.

    Returns:
        As ``query``, a view of what has the heads of a token side by side; it can be differentiated once.
    """
    context: Tensor = _Attention.apply(query, key, value, bias, scaling, *cut_and_factor(dropout), unpadded)
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
        unpadded: Unpadded | None,
    ) -> Tensor:
        """``cut`` is for :func:`drop_mask`, ``factor`` what the weights that are left are multiplied with."""
        heads = query.shape[1]
        ctx.passes, ctx.scaling, ctx.factor = passes_for(query), scaling, factor
        ctx.heads, ctx.unpadded = heads, unpadded
        ctx.draw = random_key() if cut else 0, cut
        query, key, value = (split_heads(part, unpadded, ctx.passes) for part in (query, key, value))
        shape = torch.Size((len(query), query.shape[1], key.shape[1]))
        mask = None
        if ctx.passes is not None:
            weights = _product(query, key.transpose(1, 2), scaling)
            kept = ctx.passes.weigh_(weights.unflatten(0, (-1, heads)), bias, *ctx.draw).view(shape)
        else:
            weights = query.new_empty(shape)
            if bias is not None:
                weights.unflatten(0, (-1, heads)).copy_(bias)
            weights.baddbmm_(query, key.transpose(1, 2), beta=float(bias is not None), alpha=scaling)
            _softmax_(weights)
            mask = drop_mask(shape, cut, ctx.draw[0]) if cut else None
            kept = _kept(weights, mask)
        ctx.save_for_backward(query, key, value, weights, mask)
        return merge_heads(_product(kept, value, factor), heads, unpadded, ctx.passes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        # What stands at padding has no gradient; all of it is one token here, whose gradient is zero.
        gradient = split_heads(gradients[0], ctx.unpadded, ctx.passes)
        slope = _product(gradient, value.transpose(1, 2), ctx.factor)
        if ctx.passes is not None:
            kept = ctx.passes.weigh_back_(weights, slope, *ctx.draw)
        else:
            kept = _kept(weights, mask)
            if mask is not None:
                keep_(slope, mask)
            torch._softmax_backward_data(slope, weights, -1, weights.dtype, grad_input=slope)
        value_slope = _product(kept.transpose(1, 2), gradient, ctx.factor)
        query_slope = _product(slope, key, ctx.scaling)
        key_slope = _product(slope.transpose(1, 2), query, ctx.scaling)
        parts = query_slope, key_slope, value_slope
        return *(merge_heads(part, ctx.heads, ctx.unpadded, ctx.passes) for part in parts), *[None] * 5


def _softmax_(scores: Tensor) -> None:
    """Turn scores into weights in place, in float32, some matrices at a time that stay in the cache.

    The kernel for bfloat16 takes twice as long where the width is no multiple of 32.
    """
    if scores.element_size() >= 4:  # it has the digits itself
        torch.softmax(scores, dim=-1, out=scores)
        return
    room = torch.empty(0, dtype=torch.float32)
    for some in scores.split(max(1, PIECE // max(1, scores[:1].numel()))):
        exact = room.resize_(some.shape).copy_(some)
        some.copy_(torch.softmax(exact, dim=-1, out=exact))


def _kept(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else keep(weights, mask)


def _product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Return ``factor`` times the product of each pair of matrices."""
    out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return out.baddbmm_(left, right, beta=0, alpha=factor)
