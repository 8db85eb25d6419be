"""Eager attention with a custom backward: fewer passes over the attention weights than autograd makes.

There is one attention weight per head and pair of tokens, so on a CPU a pass over them costs as much as the matrix
products. Here the factors (of the scores and of dropout) are applied inside the products, the bias is the initial
value of the first product, and only the softmax and the dropout mask are saved for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.kernels.dropout import apply_mask, apply_mask_, drop_mask, random_key, threshold_and_scale

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
