"""The attention function that every model runs while `acclimate` works on it: gates on heads, packed rows.

It is registered with ``transformers`` under the name ``acclimate``; models pick it by name and pass unknown keyword
arguments of their ``forward`` through to it, so no model needs a change.

Where the attention heads of a model are, and which weights belong to each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from acclimate.device import uses_eager_attention
from acclimate.errors import UserError
from acclimate.kernels import optimize
from acclimate.kernels.attention import eager_attention
from acclimate.kernels.unpadding import Unpadded

ATTENTION_NAME = "acclimate"
BIAS_CACHE, MASK_CACHE = "acclimate_bias", "acclimate_joined"
LAYER_INDEX = "acclimate_layer"
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
        query, key, value = (_padded(part, unpadded) for part in (query, key, value))
    mask = attention_mask
    if mask is None and getattr(module, "is_causal", False):  # transformers leaves a plain causal mask to the kernel
        tokens = query.shape[2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if block_mask is not None:
        mask = block_mask if mask is None else _combined_mask(mask, block_mask)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    context = _context(query, key, value, mask, scaling, dropout).transpose(1, 2)
    if unpadded is not None:
        context = unpadded.close(context.flatten(2)).unflatten(2, context.shape[2:])
    if head_gates is not None:
        gates = head_gates[getattr(module, LAYER_INDEX)].to(context.dtype)  # (rows, heads)
        gates = gates[:, None] if unpadded is None else gates.index_select(0, unpadded.rows)[None]
        context = context * gates[..., None]
    return context.contiguous(), None


def _context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float) -> Tensor:
    """Return the context vectors (rows, heads, tokens, head width), written out or by the fused kernel."""
    if not uses_eager_attention(query.device):
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    if torch.is_autocast_enabled("cpu"):  # which knows nothing of a function with its own backward
        query, key, value = (part.to(torch.get_autocast_dtype("cpu")) for part in (query, key, value))
    bias = None if mask is None else _bias(mask, query.dtype)
    return eager_attention(query, key, value, bias, scaling, dropout)


def _padded(part: Tensor, unpadded: Unpadded) -> Tensor:
    """Return (rows, heads, tokens, head width) from (1, heads, kept, head width)."""
    return unpadded.open(part.transpose(1, 2).flatten(2)).unflatten(2, (part.shape[1], -1)).transpose(1, 2)


def _combined_mask(mask: Tensor, other: Tensor) -> Tensor:
    """Return where two masks allow it, made once for all layers of a forward: they get the same two."""
    with_what, made = getattr(mask, MASK_CACHE, (None, None))
    if made is None or with_what is not other:
        made = mask & other
        setattr(mask, MASK_CACHE, (other, made))
    return made


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a query may look and a finite floor elsewhere, made once for all layers of a forward.

    Adding it in place is faster than filling by a mask. A row of padding that sees nothing must give numbers, not NaN,
    so the floor is finite.
    """
    made = getattr(mask, BIAS_CACHE, None)
    if made is None or made.dtype != dtype:
        made = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
        setattr(mask, BIAS_CACHE, made)
    return made


AttentionInterface.register(ATTENTION_NAME, gated_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


QUERY, KEY, VALUE = ("query", "q_lin", "q_proj"), ("key", "k_lin", "k_proj"), ("value", "v_lin", "v_proj")
FUSED = ("Wqkv",)
OUTPUT = ("out_lin", "o_proj", "Wo", "dense")


@dataclass(frozen=True)
class Projection:
    """A linear layer, or the part of a fused one, whose output rows are split among heads."""

    linear: nn.Linear
    first_row: int
    heads: int


@dataclass(frozen=True)
class HeadLayer:
    """One attention module: its number of heads, their width, and its four projections.

    ALBERT calls the same module in every layer; it is then one ``HeadLayer``, since its heads share their weights.
    """

    name: str
    heads: int
    width: int
    inputs: tuple[Projection, Projection, Projection]
    output: nn.Linear

    @property
    def units(self) -> int:
        """The heads are the units that gates and soft masks speak of."""
        return self.heads

    def owned(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Spread one value a head over the weights that the head owns.

        A head owns the rows of W_q, W_k and W_v (and of their biases) that compute its part, and the columns of W_o
        that read it. The bias of W_o belongs to no head.

        Args:
            values: (heads,).

        Returns:
            Parameters, each with values that broadcast over it; zero where a weight belongs to no head.
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
    """Make ``model`` run the gated attention function and return its attention layers in the order of their calls.

    A probe of four tokens finds the modules that really call the function, so that nothing relies on names there.

    Raises:
        UserError: If the model does not call the attention function, or does not pass keyword arguments on to it,
            so that gates would silently do nothing; or if its projections cannot be found.
    """
    kind = type(model).__name__
    refusal = UserError(
        f"The attention of {kind} cannot be gated: it does not run the attention function of transformers. "
        "Use an encoder such as bert, roberta, xlm-roberta, camembert, electra, distilbert, albert or modernbert."
    )
    try:
        model.set_attn_implementation(ATTENTION_NAME)
    except (ValueError, AttributeError) as error:
        raise refusal from error
    calls: list[tuple[nn.Module, int, int]] = []
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        try:
            model.base_model(input_ids=torch.full((1, 4), 5, device=device), attention_probe=calls)
        except TypeError as error:
            raise refusal from error
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
    if not layers:
        raise refusal
    optimize(model)
    return layers


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
    if output is None:  # BERT and its kin keep the output projection beside the attention, not in it
        parent = model.get_submodule(name.rpartition(".")[0])
        output = _first_linear(getattr(parent, "output", nn.Module()), OUTPUT)
    if len(inputs) != 3 or output is None or output.in_features != heads * width:
        raise UserError(f"The projections of {type(model).__name__}.{name} cannot be told apart by head.")
    return HeadLayer(name, heads, width, (inputs[0], inputs[1], inputs[2]), output)


def head_rows(values: Tensor, projection: Projection, width: int) -> Tensor:
    """Spread one value a head over the rows of a projection; rows of other parts of a fused layer get zero.

    Args:
        values: (heads,).
        projection: The projection; with fewer heads than values (grouped queries) the largest of a group counts.
        width: Rows a head.

    Returns:
        (rows of the linear layer,).
    """
    grouped = values.view(projection.heads, -1).amax(1)
    rows = torch.zeros(projection.linear.out_features, device=values.device, dtype=values.dtype)
    rows[projection.first_row : projection.first_row + projection.heads * width] = grouped.repeat_interleave(width)
    return rows
