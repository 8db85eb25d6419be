"""The attention function that models run under acclimate: gates on heads, packed rows, unpadded rows.

It is registered with ``transformers`` as ``acclimate``, and as ``acclimate_eager`` for the variant that computes
attention operation by operation. Models pass unknown keyword arguments of their ``forward`` on to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from acclimate.errors import UserError, first_line
from acclimate.kernels import Kernels, Unpadded, eager_attention
from acclimate.models.families import FAMILIES, language_head, use_kernels

ATTENTION_NAME, EAGER_ATTENTION_NAME = "acclimate", "acclimate_eager"
BIAS_CACHE, MASK_CACHE = "acclimate_bias", "acclimate_joined"
LAYER_INDEX = "acclimate_layer"
"""Attribute of an attention module: its index in ``head_gates``."""


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
    attention_probe: list[tuple[nn.Module, int, int]] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Multi-head attention whose context vectors are multiplied by gates (DGA, Eq. 5).

    With ``unpadded``, query, key, value and result have a single row with all kept tokens. The shapes below are those
    of padded rows.

    Args:
        context_vectors: The function that computes attention from query, key, value, mask, scaling and dropout.
        module: The calling attention module, whose index :func:`attach` has set.
        query: (rows, heads, tokens, head width).
        key: (rows, key heads, tokens, head width); fewer heads than ``query`` in grouped-query attention.
        value: Same shape as ``key``.
        attention_mask: Boolean (rows or 1, 1, tokens, tokens), true where a query may attend; or None.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor on the scores; 1 / sqrt(head width) by default.
        head_gates: (layers, rows, heads); 1 leaves a head unchanged, 0 silences it.
        block_mask: Boolean (rows, 1, tokens, tokens), true where two tokens belong to the same text.
        unpadded: Maps between padded and unpadded rows, if the model runs without padding.
        attention_probe: If given, ``(module, heads, head width)`` of each call is appended to it.

    Returns:
        The context vectors (rows, tokens, heads, head width), and None in place of the attention weights.
    """
    if attention_probe is not None:
        attention_probe.append((module, query.shape[1], query.shape[3]))
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if unpadded is not None:
        query, key, value = (_pad(part, unpadded) for part in (query, key, value))
    mask = attention_mask
    if mask is None and getattr(module, "is_causal", False):  # transformers leaves a plain causal mask to the kernel
        tokens = query.shape[2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if block_mask is not None:
        mask = block_mask if mask is None else _combined_mask(mask, block_mask)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    context = context_vectors(query, key, value, mask, scaling, dropout).transpose(1, 2)
    if unpadded is not None:
        context = unpadded.remove_padding(context.flatten(2)).unflatten(2, context.shape[2:])
    if head_gates is not None:
        gates = head_gates[getattr(module, LAYER_INDEX)].to(context.dtype)  # (rows, heads)
        gates = gates[:, None] if unpadded is None else gates.index_select(0, unpadded.rows)[None]
        context = context * gates[..., None]
    return context.contiguous(), None


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float) -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float) -> Tensor:
    if torch.is_autocast_enabled("cpu"):  # autocast does not cast the arguments of a custom autograd function
        query, key, value = (part.to(torch.get_autocast_dtype("cpu")) for part in (query, key, value))
    bias = None if mask is None else _bias(mask, query.dtype)
    return eager_attention(query, key, value, bias, scaling, dropout)


def _pad(part: Tensor, unpadded: Unpadded) -> Tensor:
    """Return (rows, heads, tokens, head width) from (1, heads, kept, head width)."""
    return unpadded.add_padding(part.transpose(1, 2).flatten(2)).unflatten(2, (part.shape[1], -1)).transpose(1, 2)


def _combined_mask(mask: Tensor, other: Tensor) -> Tensor:
    """Return the conjunction of two masks, cached on the first: all layers of a forward pass get the same two."""
    cached_for, combined = getattr(mask, MASK_CACHE, (None, None))
    if combined is None or cached_for is not other:
        combined = mask & other
        setattr(mask, MASK_CACHE, (other, combined))
    return combined


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a query may attend and the lowest finite number elsewhere, cached on the mask.

    The number is finite because a padding row that attends to nothing must not become NaN.
    """
    bias = getattr(mask, BIAS_CACHE, None)
    if bias is None or bias.dtype != dtype:
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
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
    """Prepare a model of an end task, which needs no gates, for the device that it will run on."""
    kernels = use_kernels(model, device)
    if kernels.eager_attention or uses_gated_attention(model):
        with suppress(ValueError, AttributeError):  # an architecture with its own attention keeps it
            use_attention(model, kernels)


def uses_gated_attention(model: PreTrainedModel) -> bool:
    """Return whether a model runs the gated attention function."""
    return model.config._attn_implementation in (ATTENTION_NAME, EAGER_ATTENTION_NAME)


ALTERNATIVES = f"Use an encoder such as {', '.join(FAMILIES)}."
QUERY, KEY, VALUE = ("query", "q_lin", "q_proj"), ("key", "k_lin", "k_proj"), ("value", "v_lin", "v_proj")
FUSED = ("Wqkv",)
OUTPUT = ("out_lin", "o_proj", "Wo", "dense")


@dataclass(frozen=True)
class Projection:
    """A linear layer, or a part of a fused one, whose output rows are split among heads."""

    linear: nn.Linear
    first_row: int
    heads: int


@dataclass(frozen=True)
class HeadLayer:
    """One attention module: its number of heads, their width, and its four projections.

    ALBERT calls the same module in every layer, so it has one ``HeadLayer``: its heads share their weights.
    """

    name: str
    heads: int
    width: int
    inputs: tuple[Projection, Projection, Projection]
    output: nn.Linear

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
        rows: dict[int, tuple[nn.Linear, Tensor]] = {}
        for projection in self.inputs:  # the three parts of a fused layer share one parameter
            linear, before = rows.get(id(projection.linear), (projection.linear, 0))
            rows[id(linear)] = (linear, before + head_rows(values, projection, self.width))
        result: list[tuple[Tensor, Tensor]] = []
        for linear, shares in rows.values():
            result.append((linear.weight, shares[:, None]))
            if linear.bias is not None:
                result.append((linear.bias, shares))
        return [*result, (self.output.weight, values.repeat_interleave(self.width)[None, :])]


def attach(model: PreTrainedModel) -> list[HeadLayer]:
    """Make ``model`` run the gated attention function, with the kernels for its device.

    Call it again after moving the model to another device. A forward pass over four tokens finds the modules that call
    the function. A model that does not call it, or does not pass keyword arguments on to it, keeps its own attention:
    it runs with padded rows and without gates, if that gives the same logits as the model itself.

    Returns:
        The attention layers in the order of their calls; none if the model keeps its own attention.

    Raises:
        UserError: If the model cannot run in either way, or its projections cannot be found.
    """
    own, training = model.config._attn_implementation, model.training
    kernels = use_kernels(model, model.device)
    calls: list[tuple[nn.Module, int, int]] = []
    model.eval()
    try:
        with torch.no_grad(), suppress(ValueError, AttributeError, TypeError):
            use_attention(model, kernels)
            model.base_model(input_ids=torch.full((1, 4), 5, device=model.device), attention_probe=calls)
        if not calls:
            if uses_gated_attention(model):
                model.set_attn_implementation(own)
            _check_own_attention(model)
    finally:
        model.train(training)
    names = {id(module): name for name, module in model.named_modules()}
    layers: list[HeadLayer] = []
    seen: set[int] = set()
    for module, heads, width in calls:
        if id(module) not in seen:
            seen.add(id(module))
            setattr(module, LAYER_INDEX, len(layers))
            layers.append(_layer(model, module, names[id(module)], heads, width))
    return layers


def _check_own_attention(model: PreTrainedModel) -> None:
    """Check that encoder and head, one after the other and with padding, give the logits of the model.

    Raises:
        UserError: If they do not.
    """
    ids = torch.arange(5, 21, device=model.device).view(2, 8) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    try:
        with torch.no_grad():
            expected = [model(input_ids=ids[:1]).logits[0], model(input_ids=ids[1:, :5]).logits[0]]
            hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
            found = language_head(model)(hidden)
        same = all(torch.allclose(a, b[: len(a)], atol=1e-4) for a, b in zip(expected, found, strict=True))
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
        raise UserError(f"{type(model).__name__} is not supported: {first_line(error)}. {ALTERNATIVES}") from error
    if not same:
        raise UserError(f"{type(model).__name__} is not supported: its outputs depend on padding. {ALTERNATIVES}")


def _first_linear(module: nn.Module, names: tuple[str, ...]) -> nn.Linear | None:
    return next((found for name in names if isinstance(found := getattr(module, name, None), nn.Linear)), None)


def _layer(model: PreTrainedModel, module: nn.Module, name: str, heads: int, width: int) -> HeadLayer:
    fused = _first_linear(module, FUSED)
    if fused is not None:
        inputs = [Projection(fused, part * heads * width, heads) for part in range(3)]
    else:
        linears = [_first_linear(module, names) for names in (QUERY, KEY, VALUE)]
        inputs = [Projection(linear, 0, linear.out_features // width) for linear in linears if linear is not None]
    output = _first_linear(module, OUTPUT)
    if output is None:  # in BERT and similar models it is next to the attention module, not inside
        parent = model.get_submodule(name.rpartition(".")[0])
        output = _first_linear(getattr(parent, "output", nn.Module()), OUTPUT)
    if len(inputs) != 3 or output is None or output.in_features != heads * width:
        raise UserError(f"The projections of {type(model).__name__}.{name} cannot be split by head.")
    return HeadLayer(name, heads, width, (inputs[0], inputs[1], inputs[2]), output)


def head_rows(values: Tensor, projection: Projection, width: int) -> Tensor:
    """Spread one value per head over the rows of a projection; rows of other parts of a fused layer get zero.

    Args:
        values: (heads,).
        projection: The projection. If it has fewer heads than there are values (grouped queries), each of its heads
            gets the maximum of its group.
        width: Rows per head.

    Returns:
        (rows of the linear layer,).
    """
    grouped = values.view(projection.heads, -1).amax(1)
    rows = torch.zeros(projection.linear.out_features, device=values.device, dtype=values.dtype)
    rows[projection.first_row : projection.first_row + projection.heads * width] = grouped.repeat_interleave(width)
    return rows
