"""Losses over the vocabulary that never hold the logits of all positions.

Logits are as large as positions times vocabulary: 2 GB for a row of 4,096 tokens and 128,000 words, and several times
that with their gradients. Here the head runs at some positions at a time. Only the loss of each position is kept, and
the backward pass computes the logits again. Values and gradients are the same as when computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
"""The function from hidden states (positions, width) to logits (positions, vocabulary), as
:func:`acclimate.models.families.language_head` returns it: with bias, scale and softcap, if the model has them."""


def map_logits(
    function: Callable[..., Tensor],
    heads: Sequence[Head],
    states: Sequence[Tensor],
    *values: Tensor,
    rows: int | None = None,
) -> Tensor:
    """Apply a function of logits at all positions, some positions at a time.

    With several heads the function gets the logits of each at the same positions, such as a student and its teacher.

    Args:
        function: Called with float32 logits (rows, vocabulary) of each head, then with the same rows of ``values``. It
            must treat each position by itself, and return one row per position.
        heads: The heads.
        states: Hidden states for each head, (positions, width).
        values: Further tensors with one row per position, such as labels.
        rows: Positions at a time; None for all.

    Returns:
        The results for all positions, in order: (positions, ...).
    """
    run = partial(_apply, function, heads)
    if rows is None or len(states[0]) <= rows:
        return run(states, values)
    chunks = list(zip(*(tensor.split(rows) for tensor in (*states, *values)), strict=True))
    pairs = [(chunk[: len(states)], chunk[len(states) :]) for chunk in chunks]
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(run, *pair, use_reentrant=False) for pair in pairs])
    return torch.cat([run(*pair) for pair in pairs])


def _apply(
    function: Callable[..., Tensor], heads: Sequence[Head], states: Sequence[Tensor], values: Sequence[Tensor]
) -> Tensor:
    with _autocast_without_cache(states[0].device.type):
        logits = [head(state) for head, state in zip(heads, states, strict=True)]
    return function(*(part.float() for part in logits), *values)


def _autocast_without_cache(device: str) -> AbstractContextManager[Any]:
    """Return a context in which every chunk casts the weights of the head anew, if autocast is on.

    Chunks that share a bfloat16 copy would sum its gradient in bfloat16; so each adds its own to the float32 weights.
    """
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), cache_enabled=False)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each position in nats (positions,); zero where the label is -100."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")
