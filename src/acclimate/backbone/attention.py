"""The attention function that every model runs while `acclimate` works on it: gates on heads, packed rows.

It is registered with ``transformers`` under the name ``acclimate``; models pick it by name and pass unknown keyword
arguments of their ``forward`` through to it, so no model needs a change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from acclimate.backbone.device import writes_attention_out
from acclimate.backbone.unpadded import Unpadded
from acclimate.backbone.written_out import attend

NAME = "acclimate"
BIAS, JOINED = "acclimate_bias", "acclimate_joined"
LAYER = "acclimate_layer"
"""Attribute of an attention module: the number of its row in ``head_gates``."""


def gated_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    head_gates: Tensor | None = None,
    block_mask: Tensor | None = None,
    unpadded: Unpadded | None = None,
    attention_probe: list[tuple[nn.Module, int, int]] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Multi-head attention whose context vectors are multiplied by gates (DGA, Eq. 5).

    Args:
        module: The attention module that calls; ``attach`` gave it its number ``acclimate_layer``.
        query: (rows, heads, tokens, head width); what is said of rows and tokens holds with padding put back.
        key: (rows, key heads, tokens, head width); fewer heads than queries for grouped-query attention.
        value: As ``key``.
        attention_mask: Boolean (rows or 1, 1, tokens, tokens), true where a query may look; or None.
        dropout: Probability with which an attention weight is dropped.
        scaling: Factor on the scores; by default 1 / sqrt(head width).
        head_gates: (layers, rows, heads); 1 leaves a head as it is, 0 silences it.
        block_mask: Boolean (rows, 1, tokens, tokens), true where two tokens belong to the same text.
        unpadded: How to put padding back into a query, key and value of a single row, for as long as they attend.
        attention_probe: If given, ``(module, heads, head width)`` of each call is appended to it.

    Returns:
        The context vectors (rows, tokens, heads, head width), and None for the weights, which are not kept.
    """
    if attention_probe is not None:
        attention_probe.append((module, query.shape[1], query.shape[3]))
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if unpadded is not None:
        query, key, value = (_opened(part, unpadded) for part in (query, key, value))
    mask = attention_mask
    if mask is None and getattr(module, "is_causal", False):  # transformers leaves a plain causal mask to the kernel
        tokens = query.shape[2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if block_mask is not None:
        mask = block_mask if mask is None else _joined(mask, block_mask)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    context = _context(query, key, value, mask, scaling, dropout).transpose(1, 2)
    if unpadded is not None:
        context = unpadded.close(context.flatten(2)).unflatten(2, context.shape[2:])
    if head_gates is not None:
        gates = head_gates[getattr(module, LAYER)].to(context.dtype)  # (rows, heads)
        gates = gates[:, None] if unpadded is None else gates.index_select(0, unpadded.rows)[None]
        context = context * gates[..., None]
    return context.contiguous(), None


def _context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float) -> Tensor:
    """Return the context vectors (rows, heads, tokens, head width), written out or by the fused kernel."""
    if not writes_attention_out(query.device):
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    if torch.is_autocast_enabled("cpu"):  # which knows nothing of a function with its own backward
        query, key, value = (part.to(torch.get_autocast_dtype("cpu")) for part in (query, key, value))
    bias = None if mask is None else _bias(mask, query.dtype)
    return attend(query, key, value, bias, scaling, dropout)


def _opened(part: Tensor, unpadded: Unpadded) -> Tensor:
    """Return (rows, heads, tokens, head width) from (1, heads, kept, head width)."""
    return unpadded.open(part.transpose(1, 2).flatten(2)).unflatten(2, (part.shape[1], -1)).transpose(1, 2)


def _joined(mask: Tensor, other: Tensor) -> Tensor:
    """Return where two masks allow it, made once for all layers of a forward: they get the same two."""
    with_what, made = getattr(mask, JOINED, (None, None))
    if made is None or with_what is not other:
        made = mask & other
        setattr(mask, JOINED, (other, made))
    return made


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a query may look and a finite floor elsewhere, made once for all layers of a forward.

    Adding it in place is faster than filling by a mask. A row of padding that sees nothing must give numbers, not NaN,
    so the floor is finite.
    """
    made = getattr(mask, BIAS, None)
    if made is None or made.dtype != dtype:
        made = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
        setattr(mask, BIAS, made)
    return made


AttentionInterface.register(NAME, gated_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
