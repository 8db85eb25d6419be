"""One forward through the encoder, for padded and for packed rows, with or without gates on the heads.

A model of a task computes what its head reads: no padding, and a classifier ends with the first token of each row.

The model is called as always, with padded rows; hooks leave out the rest. Same outputs but at padding, same gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from acclimate.errors import UserError
from acclimate.kernels.last_layer import can_cut_last_layer, cut_last_layer
from acclimate.kernels.unpadding import Unpadded, can_unpad
from acclimate.models.attention import ATTENTION_NAME
from acclimate.models.extensions import ORIGINAL
from acclimate.models.gates import use_gates


def encode(model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the last hidden states of the encoder.

    Texts that share a row never see each other, and each starts at position zero.

    Args:
        model: A model that went through :func:`acclimate.models.attach`.
        ids: Token ids (rows, tokens).
        text: Which text each token belongs to (rows, tokens); -1 for padding.
        gates: Gates (layers, rows, units) for each part (see :data:`acclimate.models.PARTS`; parts other than the
            heads went through :func:`acclimate.models.gate_units`), or None for ones.

    Returns:
        (rows, tokens, width). What stands at padding has no meaning.
    """
    return _forward_padded(model, ids, text, gates).last_hidden_state


def encode_positions(model: PreTrainedModel, ids: Tensor, text: Tensor, places: Tensor) -> Tensor:
    """Return the last hidden states (places, width) of some tokens only, for less than those of all cost.

    Args:
        model: As for :func:`encode`, and one that :func:`acclimate.kernels.last_layer.can_cut_last_layer`.
        ids: As for :func:`encode`.
        text: As for :func:`encode`.
        places: Where those tokens are in the flattened rows; one may be there several times.
    """
    unpadded = _unpadding(model, text)
    here = places if unpadded is None else unpadded.places(places)
    with cut_last_layer(model, lambda states: states.flatten(0, 1)[here][None]):
        return _forward(model, ids, text, None, unpadded).last_hidden_state[0]


def encode_with_embeddings(
    model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the last hidden states as :func:`encode` does, and what entered the first layer in the same pass.

    The latter is the output of the embedding layer after its normalisation and dropout, projected to the width of the
    layers where a model (ELECTRA, ALBERT) keeps narrower embeddings. Both are (rows, tokens, width).
    """
    output = _forward_padded(model, ids, text, gates, output_hidden_states=True)
    return output.last_hidden_state, output.hidden_states[0]


def encode_layers(model: PreTrainedModel, ids: Tensor, text: Tensor) -> list[Tensor]:
    """Return the hidden states of all layers, each (rows, tokens, width).

    The first is what enters the first layer, the last what :func:`encode` gives: after a final normalisation, where a
    model has one.
    """
    output = _forward_padded(model, ids, text, None, output_hidden_states=True)
    return [*output.hidden_states[:-1], output.last_hidden_state]


def _forward_padded(
    model: PreTrainedModel, ids: Tensor, text: Tensor, gates: Mapping[str, Tensor] | None, **wanted: bool
) -> Any:
    """Run the encoder, and give its states as (rows, tokens, width) in any case."""
    unpadded = _unpadding(model, text, gates)
    output = _forward(model, ids, text, gates, unpadded, **wanted)
    if unpadded is not None:
        if output.hidden_states is not None:
            output.hidden_states = tuple(map(unpadded.open, output.hidden_states))
        output.last_hidden_state = unpadded.open(output.last_hidden_state)
    return output


def _unpadding(model: PreTrainedModel, text: Tensor, gates: Mapping[str, Tensor] | None = None) -> Unpadded | None:
    """Return the way to leave padding out, where that is possible and pays."""
    by_row = any(part != "H" for part in gates or ())  # other gates are multiplied where there are no rows then
    return None if by_row or not can_unpad(model) else Unpadded.if_worthwhile(text)


def unpadded_inputs(model: PreTrainedModel, text: Tensor, unpadded: Unpadded, **padded: Tensor) -> dict[str, Any]:
    """Return what an encoder is called with to read without padding.

    Args:
        model: A model that :func:`acclimate.kernels.unpadding.can_unpad`.
        text: Which text each token belongs to (rows, tokens); -1 for padding.
        unpadded: The way to leave it out.
        padded: Other inputs (rows, tokens), by name.
    """
    moved = {**padded, "position_ids": _position_ids(text) + first_position(model)}
    inputs: dict[str, Any] = {name: unpadded.values(values) for name, values in moved.items()}
    return {**inputs, "attention_mask": _attention_masks(model, text >= 0), "unpadded": unpadded}


def _attention_masks(model: PreTrainedModel, real: Tensor) -> Any:
    """Return where the queries of padded rows may look: a mask, or where a model has kinds of layers one for each."""
    if not getattr(model.config, "layer_types", None):
        return real[:, None, None, :]
    like = real[..., None].to(model.dtype)  # of which only shape, type and device are read
    makers = {
        "full_attention": create_bidirectional_mask,
        "sliding_attention": create_bidirectional_sliding_window_mask,
    }
    return {kind: make(model.config, like, real.long()) for kind, make in makers.items()}


def _forward(
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
            options["position_ids"] = _position_ids(text) + first_position(model)
    others = dict(gates or {})
    if "H" in others:
        options["head_gates"] = others.pop("H")
    with use_gates(model, others):
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


def _position_ids(text: Tensor) -> Tensor:
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


CLASSIFIER, TAGGER = "ForSequenceClassification", "ForTokenClassification"
"""How classes end whose head, in models whose last layer can end early, reads the first token, or each by itself.
Question answering is no such class: padding takes part in its softmax over places."""
REQUIRED_INPUTS, SUPPORTED_INPUTS = {"input_ids", "attention_mask"}, {"input_ids", "attention_mask", "token_type_ids"}
"""Inputs that can be read without padding; a call with others, or that asks for more outputs, is read with it."""
LOSS_ARGUMENTS = {"return_dict", "num_items_in_batch"}
"""What the encoder is handed beside these and does not read."""


@contextmanager
def skip_unread_tokens(model: PreTrainedModel) -> Iterator[None]:
    """Return a context in which a classifier of texts or tokens leaves out padding, and what follows it.

    In it the last hidden states of the encoder of a classifier of texts are (rows, 1, width), the first tokens, if it
    is one of :data:`acclimate.kernels.last_layer.BERT_LIKE`. Other models leave out less, or nothing.
    """
    reading = _SkipUnreadTokens(model)
    with ExitStack() as stack:
        if reading.first:
            stack.enter_context(cut_last_layer(model, reading.first_tokens))
        if reading.pooled:
            for reader in filter(None, (model.base_model, getattr(model, ORIGINAL, None))):
                stack.callback(reader.encoder.register_forward_hook(reading.first_only).remove)
        if reading.possible:
            before = model.base_model.register_forward_pre_hook(reading.close, with_kwargs=True)
            after = model.base_model.register_forward_hook(reading.open)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class _SkipUnreadTokens:
    """The hooks, and between them the way to leave padding out of what is being read."""

    def __init__(self, model: PreTrainedModel) -> None:
        kind = type(model).__name__
        self.first = kind.endswith(CLASSIFIER) and can_cut_last_layer(model)
        own = model.config._attn_implementation == ATTENTION_NAME and can_unpad(model)
        pooler = getattr(model.base_model, "pooler", None) is not None
        self.pooled = own and pooler and not self.first and kind.endswith(CLASSIFIER)
        self.possible = own and (self.first or self.pooled or (not pooler and kind.endswith((CLASSIFIER, TAGGER))))
        self.model = model
        self.unpadded: Unpadded | None = None

    def close(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Leave padding out of the inputs of the encoder, where that pays."""
        self.unpadded = None
        if inputs:
            options = {"input_ids": inputs[0], **options}
        given = {name for name, value in options.items() if value is not None} - LOSS_ARGUMENTS
        if len(inputs) > 1 or not REQUIRED_INPUTS <= given <= SUPPORTED_INPUTS:
            return None
        text = options["attention_mask"] - 1
        if bool((text[:, 1:] > text[:, :-1]).any()):  # padding on the left
            return None
        self.unpadded = Unpadded.if_worthwhile(text)
        if self.unpadded is None:
            return None
        padded = {name: options[name] for name in given - {"attention_mask"}}
        return (), {**options, **unpadded_inputs(self.model, text, self.unpadded, **padded)}

    def first_tokens(self, states: Tensor) -> Tensor:
        """Return the first token of each row (rows, 1, width)."""
        if self.unpadded is None or states.shape[1] == 1:
            return states[:, :1]
        return self.unpadded.firsts(states)

    def first_only(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Leave the first token of each row to the pooler, which takes it from there."""
        if self.unpadded is not None:
            output.last_hidden_state = self.unpadded.firsts(output.last_hidden_state)

    def open(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Put padding back into what the encoder gives, unless that is the first tokens."""
        unpadded, self.unpadded = self.unpadded, None
        if unpadded is not None and not self.first and not self.pooled:
            output.last_hidden_state = unpadded.open(output.last_hidden_state)
