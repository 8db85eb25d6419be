"""One forward through the encoder, for padded and for packed rows, with or without gates on the heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from acclimate.backbone.last_layer import only_tokens
from acclimate.backbone.units import gates_set
from acclimate.backbone.unpadded import Unpadded, leaves_padding_out
from acclimate.errors import UserError


def encode(model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the last hidden states of the encoder.

    Texts that share a row never see each other, and each starts at position zero.

    Args:
        model: A model that went through :func:`acclimate.backbone.attach`.
        ids: Token ids (rows, tokens).
        text: Which text each token belongs to (rows, tokens); -1 for padding.
        gates: Gates (layers, rows, units) for each part (see :data:`acclimate.backbone.PARTS`; parts other than the
            heads went through :func:`acclimate.backbone.gate_units`), or None for ones.

    Returns:
        (rows, tokens, width). What stands at padding has no meaning.
    """
    return _opened(model, ids, text, gates).last_hidden_state


def encode_places(model: PreTrainedModel, ids: Tensor, text: Tensor, places: Tensor) -> Tensor:
    """Return the last hidden states (places, width) of some tokens only, for less than those of all cost.

    Args:
        model: As for :func:`encode`, and one that :func:`acclimate.backbone.last_layer.ends_by_token`.
        ids: As for :func:`encode`.
        text: As for :func:`encode`.
        places: Where those tokens are in the flattened rows; one may be there several times.
    """
    unpadded = _unpadded(model, text)
    here = places if unpadded is None else unpadded.places(places)
    with only_tokens(model, lambda states: states.flatten(0, 1)[here][None]):
        return _run(model, ids, text, None, unpadded).last_hidden_state[0]


def encode_with_embeddings(
    model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the last hidden states as :func:`encode` does, and what entered the first layer in the same pass.

    The latter is the output of the embedding layer after its normalisation and dropout, projected to the width of the
    layers where a model (ELECTRA, ALBERT) keeps narrower embeddings. Both are (rows, tokens, width).
    """
    output = _opened(model, ids, text, gates, output_hidden_states=True)
    return output.last_hidden_state, output.hidden_states[0]


def encode_layers(model: PreTrainedModel, ids: Tensor, text: Tensor) -> list[Tensor]:
    """Return the hidden states of all layers, each (rows, tokens, width).

    The first is what enters the first layer, the last what :func:`encode` gives: after a final normalisation, where a
    model has one.
    """
    output = _opened(model, ids, text, None, output_hidden_states=True)
    return [*output.hidden_states[:-1], output.last_hidden_state]


def _opened(
    model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None, **wanted: bool
) -> Any:
    """Run the encoder, and give its states as (rows, tokens, width) in any case."""
    unpadded = _unpadded(model, text, gates)
    output = _run(model, ids, text, gates, unpadded, **wanted)
    if unpadded is not None:
        if output.hidden_states is not None:
            output.hidden_states = tuple(map(unpadded.open, output.hidden_states))
        output.last_hidden_state = unpadded.open(output.last_hidden_state)
    return output


def _unpadded(model: PreTrainedModel, text: Tensor, gates: Mapping[str, Tensor] | None = None) -> Unpadded | None:
    """Return the way to leave padding out, where that is possible and pays."""
    by_row = any(part != "H" for part in gates or ())  # other gates are multiplied where there are no rows then
    return None if by_row or not leaves_padding_out(model) else Unpadded.if_it_pays(text)


def unpadded_inputs(model: PreTrainedModel, text: Tensor, unpadded: Unpadded, **padded: Tensor) -> dict[str, Any]:
    """Return what an encoder is called with to read without padding.

    Args:
        model: A model that :func:`acclimate.backbone.unpadded.leaves_padding_out`.
        text: Which text each token belongs to (rows, tokens); -1 for padding.
        unpadded: The way to leave it out.
        padded: Other inputs (rows, tokens), by name.
    """
    moved = {**padded, "position_ids": _positions(text) + first_position(model)}
    inputs: dict[str, Any] = {name: unpadded.values(values) for name, values in moved.items()}
    return {**inputs, "attention_mask": _masks(model, text >= 0), "unpadded": unpadded}


def _masks(model: PreTrainedModel, real: Tensor) -> Any:
    """Return where the queries of padded rows may look: a mask, or where a model has kinds of layers one for each."""
    if not getattr(model.config, "layer_types", None):
        return real[:, None, None, :]
    like = real[..., None].to(model.dtype)  # of which only shape, type and device are read
    makers = {
        "full_attention": create_bidirectional_mask,
        "sliding_attention": create_bidirectional_sliding_window_mask,
    }
    return {kind: make(model.config, like, real.long()) for kind, make in makers.items()}


def _run(
    model: PreTrainedModel,
    ids: Tensor,
    text: Tensor,
    gates: Mapping[str, Tensor] | None,
    unpadded: Unpadded | None,
    **wanted: bool,
) -> Any:
    """Run the encoder; ``wanted`` are its switches for further outputs. States come as they are, without padding."""
    real = text >= 0
    packed = bool(((text[:, 1:] != text[:, :-1]) & real[:, 1:]).any())
    options: dict[str, Any] = {"block_mask": (text[:, :, None] == text[:, None, :]).unsqueeze(1)} if packed else {}
    if unpadded is not None:
        options |= unpadded_inputs(model, text, unpadded, input_ids=ids)
    else:
        # The block mask alone keeps padding from texts, and lets it see itself. A query that sees nothing, as with
        # both masks, is NaN in some kernels of accelerators, and so are the gradients of the keys of its row.
        options |= {"input_ids": ids, "attention_mask": torch.ones_like(ids) if packed else real.long()}
        if packed:
            options["position_ids"] = _positions(text) + first_position(model)
    others = dict(gates or {})
    if "H" in others:
        options["head_gates"] = others.pop("H")
    with gates_set(model, others):
        return model.base_model(**options, **wanted)


def check_packable(model: PreTrainedModel) -> None:
    """Check that texts which share a row do not see each other.

    Raises:
        UserError: If the embeddings of a token read its neighbours, as those of MobileBERT do, also across texts.
    """
    if getattr(model.config, "trigram_input", False):
        raise UserError(
            f"{type(model).__name__} reads neighbours across texts, so none can share a row: layout=padded."
        )


def _positions(text: Tensor) -> Tensor:
    """Number the tokens of each text in a row from zero: (rows, tokens)."""
    place = torch.arange(text.shape[1], device=text.device).expand_as(text)
    starts = torch.ones_like(text, dtype=torch.bool)
    starts[:, 1:] = text[:, 1:] != text[:, :-1]
    return place - torch.where(starts, place, 0).cummax(1).values


def longest_text(model: PreTrainedModel) -> int | None:
    """Return how many tokens the positions of a model reach; None if its configuration does not say."""
    positions = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None else positions - first_position(model)


def first_position(model: PreTrainedModel) -> int:
    """Return the number of the first position: RoBERTa and its kin begin at the padding index plus one."""
    embeddings = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return 0 if padding is None else padding + 1
