"""The attention function that models run under acclimate: gates on heads, packed rows, unpadded rows.

It is registered with ``transformers`` as ``acclimate``, and as ``acclimate_eager`` for the variant that computes
attention operation by operation. Models pass unknown keyword arguments of their ``forward`` on to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import use_gqa_in_sdpa
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.pytorch_utils import Conv1D

from acclimate.base.errors import UserError
from acclimate.kernels import Kernels, Unpadded, eager_attention, varlen_attention
from acclimate.models.families import FAMILIES, use_kernels

ATTENTION_NAME, EAGER_ATTENTION_NAME = "acclimate", "acclimate_eager"
BIAS_CACHE, MASK_CACHE = "acclimate_bias", "acclimate_joined"
LAYER_INDEX = "acclimate_layer"
"""Attribute of an attention module: its index in ``head_gates``."""
LAYER_INDEX_TENSOR = "acclimate_layer_tensor"
"""The same as a tensor (1,), for compiled layers, which would be compiled again for each number."""


def _gated_attention(
    context_vectors: Callable[..., Tensor],
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
    attention_calls: list[tuple[nn.Module, int, int]] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    earlier_only: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Multi-head attention whose context vectors are multiplied by gates (DGA, Eq. 5).

    With ``unpadded``, query, key, value and result have a single row with all kept tokens. The shapes below are for
    padded rows.

    Args:
        context_vectors: The function that computes attention from query, key, value, mask, scaling, dropout and
            whether it is causal without a mask.
        module: The calling attention module, whose index :func:`acclimate.models.probe.attach` has set.
        query: (rows, heads, tokens, head width).
        key: (rows, key heads, tokens, head width); fewer heads than ``query`` in grouped-query attention.
        value: Same shape as ``key``.
        attention_mask: Boolean (rows or 1, 1, tokens, tokens), true where a query may attend, or numbers that are
            added to the scores; or None.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor on the scores; 1 / sqrt(head width) by default.
        head_gates: (layers, rows, heads); 1 leaves a head unchanged, 0 silences it.
        block_mask: Boolean (rows, 1, tokens, tokens), true where two tokens belong to the same text.
        unpadded: Maps between padded and unpadded rows, if the model runs without padding. If attention reads them
            without padding, masks are ignored.
        attention_calls: If given, ``(module, heads, head width)`` of each call is appended to it.
        sliding_window: A token attends to others that are less than this away. Only attention without padding reads
            it, since masks contain it.
        softcap: Bound on the scores (Gemma 2).
        s_aux: Attention sinks (heads,): the score of an additional key that has no value (gpt-oss).
        earlier_only: Whether an encoder reads from left to right. Only attention without padding reads it, since masks
            contain it.

    Returns:
        The context vectors (rows, tokens, heads, head width), and None instead of the attention weights.
    """
    if attention_calls is not None:
        attention_calls.append((module, query.shape[1], value.shape[3]))
    if softcap is not None or s_aux is not None:
        context_vectors = partial(_capped, softcap, s_aux)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal, mask = earlier_only or bool(getattr(module, "is_causal", False)), attention_mask
    varlen = unpadded is not None and unpadded.varlen
    if unpadded is not None and varlen and context_vectors is _sdpa:
        query, key, value = _same_type(query, key, value)
        context = varlen_attention(query, key, value, unpadded, scaling, dropout, causal, sliding_window)
        if context is not None:
            return _gated(context.transpose(1, 2), module, head_gates, unpadded), None
    if unpadded is not None:
        query, key, value = (_pad(part, unpadded) for part in (query, key, value))
        if varlen:
            mask = unpadded.attention_mask(causal, sliding_window)
    causal = mask is None and causal  # transformers leaves such a mask to the kernel
    if causal and (block_mask is not None or context_vectors is not _sdpa):
        make = _causal_mask.__wrapped__ if torch.compiler.is_compiling() else _causal_mask
        mask, causal = make(query.shape[2], query.device), False
    if block_mask is not None:
        mask = block_mask if mask is None else _combined_mask(mask, block_mask)
    context = context_vectors(query, key, value, mask, scaling, dropout, causal).transpose(1, 2)
    if unpadded is not None:
        context = unpadded.remove_padding(context.flatten(2)).unflatten(2, context.shape[2:])
    return _gated(context, module, head_gates, unpadded), None


def _gated(context: Tensor, module: nn.Module, head_gates: Tensor | None, unpadded: Unpadded | None) -> Tensor:
    """Multiply the context vectors (rows, tokens, heads, head width) by the gates of their heads."""
    if head_gates is not None:
        index = getattr(module, LAYER_INDEX_TENSOR, None)
        mine = head_gates[getattr(module, LAYER_INDEX)] if index is None else head_gates.index_select(0, index)[0]
        gates = mine.to(context.dtype)  # (rows, heads)
        gates = gates[:, None] if unpadded is None else gates.index_select(0, unpadded.rows)[None]
        context = context * gates[..., None]
    return context.contiguous()


def _same_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all three in the type that products have: autocast does not cast arguments of the kernels."""
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float, causal: bool
) -> Tensor:
    grouped = key.shape[1] != query.shape[1]
    if grouped and query.device.type != "cpu" and not use_gqa_in_sdpa(mask, key, value):
        key, value, grouped = *_repeat_groups(query, key, value), False
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
    )


def _eager(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float, _: bool
) -> Tensor:
    if torch.compiler.is_compiling():
        return _sdpa(query, key, value, mask, scaling, dropout, False)
    if torch.is_autocast_enabled("cpu"):  # autocast does not cast the arguments of a custom autograd function
        query, key, value = (part.to(torch.get_autocast_dtype("cpu")) for part in (query, key, value))
    bias = None if mask is None else _bias(mask, query.dtype)
    return eager_attention(query, *_repeat_groups(query, key, value), bias, scaling, dropout)


def _capped(
    softcap: float | None,
    sinks: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float,
    _: bool,
) -> Tensor:
    """Compute attention with bounded scores or sinks, which fused kernels do not offer."""
    key, value = _repeat_groups(query, key, value)
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + _bias(mask, scores.dtype)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)[..., : key.shape[2]]
    return nn.functional.dropout(weights, dropout) @ value


def _repeat_groups(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with as many heads as the queries."""
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


@lru_cache(maxsize=1)
def _causal_mask(tokens: int, device: torch.device) -> Tensor:
    """Return true where a token may attend to another: (tokens, tokens). All layers get the same tensor."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def _pad(part: Tensor, unpadded: Unpadded) -> Tensor:
    """Return (rows, heads, tokens, head width) from (1, heads, kept, head width)."""
    return unpadded.add_padding(part.transpose(1, 2).flatten(2)).unflatten(2, (part.shape[1], -1)).transpose(1, 2)


def _combined_mask(mask: Tensor, other: Tensor) -> Tensor:
    """Return the conjunction of two masks, cached on the first: all layers of a forward pass get the same two."""
    cached_for, combined = getattr(mask, MASK_CACHE, (None, None))
    if combined is None or cached_for is not other:
        combined = mask & other if mask.dtype == torch.bool else mask.masked_fill(~other, torch.finfo(mask.dtype).min)
        if not torch.compiler.is_compiling():
            setattr(mask, MASK_CACHE, (other, combined))
    return combined


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a query may attend and the lowest finite number elsewhere, cached on the mask.

    The number is finite because a padding row that attends to nothing must not become NaN.
    """
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    bias = getattr(mask, BIAS_CACHE, None)
    if bias is None or bias.dtype != dtype:
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
        if not torch.compiler.is_compiling():
            setattr(mask, BIAS_CACHE, bias)
    return bias


gated_attention = partial(_gated_attention, _sdpa)
AttentionInterface.register(ATTENTION_NAME, gated_attention)
AttentionInterface.register(EAGER_ATTENTION_NAME, partial(_gated_attention, _eager))
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
AttentionMaskInterface.register(EAGER_ATTENTION_NAME, sdpa_mask)


def use_attention(model: PreTrainedModel, kernels: Kernels) -> None:
    """Make a model run the gated attention function, in the variant that its kernels require.

    Raises:
        ValueError: If its architecture does not call the attention function of ``transformers``.
        AttributeError: If its architecture does not let the attention function be chosen.
    """
    if not model._can_set_attn_implementation():  # transformers would only log a warning
        raise ValueError(f"{type(model).__name__} has its own attention")
    model.set_attn_implementation(EAGER_ATTENTION_NAME if kernels.eager_attention else ATTENTION_NAME)


def prepare_for_device(model: PreTrainedModel, device: torch.device) -> None:
    """Prepare a model of an end task, which needs no gates, for the device that it will run on.

    An architecture without a row in the table of families keeps its own attention.
    """
    kernels = use_kernels(model, device)
    faster = (kernels.eager_attention or kernels.varlen_attention) and model.config.model_type in FAMILIES
    if faster or uses_gated_attention(model):
        use_attention(model, kernels)


def uses_gated_attention(model: PreTrainedModel) -> bool:
    """Return whether a model runs the gated attention function."""
    return model.config._attn_implementation in (ATTENTION_NAME, EAGER_ATTENTION_NAME)


ALTERNATIVES = f"Use an architecture such as {', '.join(FAMILIES)}, llama or qwen3."
QUERY, KEY, VALUE = ("query", "q_lin", "q_proj"), ("key", "k_lin", "k_proj"), ("value", "v_lin", "v_proj")
FUSED = ("Wqkv", "qkv_proj", "c_attn")
"""Names of a layer whose outputs are all queries, then all keys, then all values."""
INTERLEAVED = ("query_key_value",)
"""Names of a layer whose outputs are the query, the key and the value of each head in turn."""
OUTPUT = ("out_lin", "o_proj", "out_proj", "c_proj", "Wo", "dense")


@dataclass(frozen=True)
class Projection:
    """A linear layer, or a part of a fused one, whose output rows are split among heads.

    Attributes:
        linear: The layer. GPT-2's ``Conv1D`` is a linear layer with a transposed weight.
        first_row: The first row.
        heads: Number of heads; fewer than in the layer for the keys and values of grouped queries.
        width: Rows per head. Qwen3.5 computes a gate with each query, GPT-NeoX keys and values.
    """

    linear: Any
    first_row: int
    heads: int
    width: int


@dataclass(frozen=True)
class HeadLayer:
    """One attention module: its number of heads, the width of their context vectors, and its projections.

    ALBERT calls the same module in every layer, so it has one ``HeadLayer``: its heads share their weights.
    """

    name: str
    heads: int
    width: int
    inputs: tuple[Projection, ...]
    output: Any

    @property
    def units(self) -> int:
        """Number of units: the heads."""
        return self.heads

    def spread_over_parameters(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Spread one value per head over the weights of that head.

        A head owns its rows of W_q, W_k and W_v (and of their biases) and its columns of W_o. The bias of W_o belongs
        to no head.

        Args:
            values: (heads,).

        Returns:
            Parameters, each with values that broadcast over it; zero for weights that belong to no head.
        """
        rows: dict[int, tuple[Any, Tensor]] = {}
        for projection in self.inputs:  # the three parts of a fused layer share one parameter
            linear, before = rows.get(id(projection.linear), (projection.linear, 0))
            rows[id(linear)] = (linear, before + head_rows(values, projection))
        result: list[tuple[Tensor, Tensor]] = []
        for linear, shares in rows.values():
            result.append((linear.weight, shares[None, :] if isinstance(linear, Conv1D) else shares[:, None]))
            if linear.bias is not None:
                result.append((linear.bias, shares))
        columns = values.repeat_interleave(self.width)
        transposed = isinstance(self.output, Conv1D)
        return [*result, (self.output.weight, columns[:, None] if transposed else columns[None, :])]


def split_heads(model: PreTrainedModel, calls: Sequence[tuple[str, int, int]]) -> list[HeadLayer]:
    """Find the projections of each attention module that :func:`gated_attention` was called from.

    Args:
        model: The model.
        calls: Name, heads and head width of each module, in the order of the calls; ALBERT repeats one.

    Returns:
        The layers; each module then knows its index among them.

    Raises:
        UserError: If the projections of a module are not found, or do not consist of heads.
    """
    layers: list[HeadLayer] = []
    for name, heads, width in dict.fromkeys(calls):
        module = model.get_submodule(name)
        setattr(module, LAYER_INDEX, len(layers))
        layers.append(_layer(model, module, name, heads, width))
    return layers


def _first_linear(module: nn.Module, names: tuple[str, ...]) -> Any:
    kinds = (nn.Linear, Conv1D)
    return next((found for name in names if isinstance(found := getattr(module, name, None), kinds)), None)


def _outputs(linear: Any) -> int:
    return int(linear.nf if isinstance(linear, Conv1D) else linear.out_features)


def _layer(model: PreTrainedModel, module: nn.Module, name: str, heads: int, width: int) -> HeadLayer:
    inputs = _inputs(module, heads, width)
    output = _first_linear(module, OUTPUT)
    if output is None:  # in BERT and similar models it is next to the attention module, not inside
        parent = model.get_submodule(name.rpartition(".")[0])
        output = _first_linear(getattr(parent, "output", nn.Module()), OUTPUT)
    width_read = output.nx if isinstance(output, Conv1D) else getattr(output, "in_features", 0)
    if not inputs or width_read != heads * width:
        raise UserError(f"The projections of {type(model).__name__}.{name} cannot be split by head.")
    return HeadLayer(name, heads, width, inputs, output)


def _inputs(module: nn.Module, heads: int, width: int) -> tuple[Projection, ...]:
    """Return the projections to queries, keys and values; none if their rows are not split among heads."""
    if (fused := _first_linear(module, INTERLEAVED)) is not None:
        whole = _outputs(fused) == 3 * heads * width
        return (Projection(fused, 0, heads, 3 * width),) if whole else ()
    if (fused := _first_linear(module, FUSED)) is not None:
        key_heads, rest = divmod(_outputs(fused) - heads * width, 2 * width)
        counts, first, inputs = (heads, key_heads, key_heads), 0, []
        for count in counts:
            inputs.append(Projection(fused, first * width, count, width))
            first += count
        return tuple(inputs) if not rest and key_heads and heads % key_heads == 0 else ()
    linears = [_first_linear(module, names) for names in (QUERY, KEY, VALUE)]
    if None in linears or _outputs(linears[0]) % (heads * width):
        return ()
    inputs = [Projection(linears[0], 0, heads, _outputs(linears[0]) // heads)]
    for linear in linears[1:]:
        key_heads, rest = divmod(_outputs(linear), width)
        if rest or not key_heads or heads % key_heads:
            return ()
        inputs.append(Projection(linear, 0, key_heads, width))
    return tuple(inputs)


def head_rows(values: Tensor, projection: Projection) -> Tensor:
    """Spread one value per head over the rows of a projection; rows of other parts of a fused layer get zero.

    Args:
        values: (heads,).
        projection: The projection. If it has fewer heads than there are values (grouped queries), each of its heads
            gets the maximum of its group.

    Returns:
        (rows of the linear layer,).
    """
    grouped = values.view(projection.heads, -1).amax(1)
    rows = torch.zeros(_outputs(projection.linear), device=values.device, dtype=values.dtype)
    spread = grouped.repeat_interleave(projection.width)
    rows[projection.first_row : projection.first_row + len(spread)] = spread
    return rows
