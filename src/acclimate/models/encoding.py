"""Forward passes through the encoder: padded or packed rows, with or without gates, without needless work.

The ``encode...`` functions run the encoder for adaptation and inspection. :func:`skip_unread_tokens` is for end-task
models that other code calls: hooks skip padding and unread positions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from acclimate.base.device import copy_to, host_copy, with_host_copy
from acclimate.base.errors import UserError
from acclimate.kernels import Unpadded, cut_last_layer
from acclimate.models.attention import uses_gated_attention
from acclimate.models.batching import recomputes_layers
from acclimate.models.extensions import ORIGINAL
from acclimate.models.families import (
    first_position,
    is_compiled,
    kernels_of,
    last_layer_ends,
    probe_of,
    reads_segments,
    reset_rotary,
    rotary_switch,
)
from acclimate.models.gates import use_gates
from acclimate.models.kinds import IGNORE_INDEX


def encode(
    model: PreTrainedModel,
    ids: Tensor,
    text: Tensor,
    gates: Mapping[str, Tensor] | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Return the last hidden states of the encoder.

    Texts that share a row do not attend to each other, and each starts at position zero.

    Args:
        model: A model that :func:`acclimate.models.probe.attach` has prepared.
        ids: Token ids (rows, tokens).
        text: Index of the text of each token (rows, tokens); -1 at padding.
        gates: Gates (layers, rows, units) by part (see :data:`acclimate.models.gates.PARTS`), or None for ones. Parts
        other
            than the heads need :func:`acclimate.models.gates.gate_units` first.
        segments: 0 or 1 for each token (rows, tokens), for pairs of texts; ignored by models without segments.

    Returns:
        (rows, tokens, width). States at padding are undefined.
    """
    if reads_pairs(model):
        return _encode_pairs(model, ids, text)
    return _forward_padded(model, ids, text, gates, segments).last_hidden_state


def reads_pairs(model: PreTrainedModel) -> bool:
    """Return whether a model is an encoder-decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _encode_pairs(model: PreTrainedModel, ids: Tensor, text: Tensor) -> Tensor:
    """Return the last hidden states of an encoder-decoder (rows, tokens, width).

    A row is the source of one text and then its target, of which it has the complements ``~id``; a row without a
    target is read by the encoder alone. The decoder reads the target shifted to the right, so its state at a token
    predicts that token.
    """
    hosts = host_copy(ids), host_copy(text) >= 0
    sizes = (hosts[1] & (hosts[0] >= 0)).sum(1), (hosts[1] & (hosts[0] < 0)).sum(1)
    probe = probe_of(model)
    if len(ids) > 1 and probe is not None and not probe.pads and not all(bool((one == one[0]).all()) for one in sizes):
        rows = [_encode_pairs(model, *(part[row : row + 1] for part in (ids, text))) for row in range(len(ids))]
        return torch.cat(rows)
    source, target = (int(size.max()) for size in sizes)
    read = (text >= 0) & (ids >= 0)
    length, mask = read.sum(1, keepdim=True), read[:, :source]
    encoder, decoder = model.get_encoder(), model.get_decoder()
    given = torch.where(mask, ids[:, :source], model.config.pad_token_id or 0)
    first = encoder(input_ids=given, attention_mask=mask.long()).last_hidden_state
    place = torch.arange(ids.shape[1], device=ids.device)
    encoded = nn.functional.pad(first, (0, 0, 0, ids.shape[1] - source))
    if not target:
        return encoded
    wanted = (length + place[:target]).clamp(max=ids.shape[1] - 1)
    labels = torch.where((text >= 0) & (ids < 0), ~ids, IGNORE_INDEX).gather(1, wanted)
    labels = torch.where(length + place[:target] < ids.shape[1], labels, IGNORE_INDEX)
    # Tokens of a target see none after it, so its padding needs no mask.
    cross = {"encoder_hidden_states": first, "encoder_attention_mask": mask.long()}
    states = decoder(input_ids=shift_right(model, labels), **cross, use_cache=False).last_hidden_state
    back = (place - length).clamp(0, target - 1)[..., None].expand(-1, -1, states.shape[-1])
    decoded = states.gather(1, back)
    same = encoded.shape[-1] == states.shape[-1]
    return torch.where(read[..., None], encoded if same else torch.zeros_like(decoded), decoded)


def shift_right(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Return what a decoder reads to predict a target: one token before each, as the model itself shifts it.

    Args:
        model: An encoder-decoder.
        labels: The target, -100 at padding (rows, tokens).
    """
    shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    known = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE_INDEX, model.config.pad_token_id or 0)
    return nn.functional.pad(known, (1, 0), value=int(model.config.decoder_start_token_id or 0))


def encode_positions(model: PreTrainedModel, ids: Tensor, text: Tensor, places: Tensor) -> Tensor:
    """Return the last hidden states (places, width) at some positions only, which costs less than all of them.

    Args:
        model: As for :func:`encode`, with ``reads_positions(model)``.
        ids: As for :func:`encode`.
        text: As for :func:`encode`.
        places: Indices into the flattened rows; repetitions are allowed.
    """
    host = host_copy(text)
    if _reads_apart(model, host):
        return encode(model, ids, text).flatten(0, 1)[places]
    unpadded = _unpadding(model, host)
    here = places if unpadded is None else unpadded.map_indices(places)
    with cut_last_layer(last_layer_ends(model), lambda states: states.flatten(0, 1)[here][None]):
        return _forward(model, ids, text, None, unpadded, host).last_hidden_state[0]


def encode_with_embeddings(
    model: PreTrainedModel,
    ids: Tensor,
    text: Tensor,
    gates: Mapping[str, Tensor] | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the last hidden states and the input of the first layer, both (rows, tokens, width).

    The latter is the output of the embedding layer after its normalization and dropout, projected to the width of the
    layers where the embeddings are narrower (ELECTRA, ALBERT).
    """
    output = _forward_padded(model, ids, text, gates, segments, output_hidden_states=True)
    return output.last_hidden_state, output.hidden_states[0]


def encode_layers(model: PreTrainedModel, ids: Tensor, text: Tensor) -> list[Tensor]:
    """Return the hidden states of all layers, each (rows, tokens, width).

    The first is the input of the first layer, the last what :func:`encode` returns, after a final normalization if the
    model has one.
    """
    output = _forward_padded(model, ids, text, output_hidden_states=True)
    return [*output.hidden_states[:-1], output.last_hidden_state]


def decode(model: PreTrainedModel, ids: Tensor, text: Tensor, **arguments: Any) -> Tensor:
    """Return the last hidden states of an encoder that reads from left to right, as a decoder does.

    Args:
        model: As for :func:`encode`; :func:`acclimate.models.probe.check_reads_left_to_right` says whether it can.
        ids: As for :func:`encode`.
        text: As for :func:`encode`; an architecture with its own attention has one text per row.
        arguments: Further arguments of its layers, which then get padded rows.

    Returns:
        (rows, tokens, width), each state a function of the same text up to its token. Undefined at padding.
    """
    if not uses_gated_attention(model):
        unseen = ~_sees(text, earlier_only=True)
        mask = torch.zeros(unseen.shape, dtype=model.dtype, device=ids.device)
        mask.masked_fill_(unseen, torch.finfo(model.dtype).min)  # architectures add it to the scores
        own: Tensor = model.base_model(input_ids=ids, attention_mask=mask, **_without_cache(model)).last_hidden_state
        return own
    host = host_copy(text)
    unpadded = None if arguments else _unpadding(model, host)
    output = _forward(model, ids, text, None, unpadded, host, earlier_only=True, **arguments)
    states: Tensor = output.last_hidden_state
    return states if unpadded is None else unpadded.add_padding(states)


def _sees(text: Tensor, earlier_only: bool = False) -> Tensor:
    """Return where a query may attend to a key, within its text: (rows, 1, tokens, tokens), boolean."""
    same = text[:, :, None] == text[:, None, :]
    return (same.tril() if earlier_only else same).unsqueeze(1)


def encode_tree(model: PreTrainedModel, ids: Tensor, depth: Tensor, end: Tensor) -> Tensor:
    """Return the last hidden states of a causal model for texts that begin alike, whose common tokens are read once.

    Args:
        model: As for :func:`encode`; texts have to be able to share a row (:func:`check_packable`).
        ids: Token ids (rows, tokens), each after the token that it follows, and before all that follow a later one.
        depth: Number of tokens before each in its text (rows, tokens).
        end: Place in the row after the last token that continues each one (rows, tokens): a token attends to itself
            and to those before it whose end lies after it. Padding attends to itself.

    Returns:
        (rows, tokens, width).
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    return encode_visible(model, ids, depth, (place[:, None] < end[:, None, :]) & (place <= place[:, None]))


def encode_visible(model: PreTrainedModel, ids: Tensor, position: Tensor, visible: Tensor) -> Tensor:
    """Return the last hidden states of a model in which each token attends to given others.

    Args:
        model: As for :func:`encode`; texts have to be able to share a row (:func:`check_packable`).
        ids: Token ids (rows, tokens).
        position: Position of each token in its text, counted from 0 (rows, tokens).
        visible: Whether a token attends to another: boolean (rows, tokens, tokens), at least to itself.

    Returns:
        (rows, tokens, width).
    """
    if rotary_switch(model) is not None:
        reset_rotary(model)
    options = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),  # without one, transformers would look for packed texts
        "position_ids": position + first_position(model),
        "block_mask": visible.unsqueeze(1),
    }
    states: Tensor = model.base_model(**options, **_without_cache(model)).last_hidden_state
    return states


def _forward_padded(
    model: PreTrainedModel,
    ids: Tensor,
    text: Tensor,
    gates: Mapping[str, Tensor] | None = None,
    segments: Tensor | None = None,
    **outputs: bool,
) -> Any:
    """Run the encoder and return its output with states (rows, tokens, width), padded again if need be.

    Raises:
        UserError: If the model is an encoder-decoder.
    """
    if reads_pairs(model):
        raise UserError(f"{type(model).__name__} is an encoder-decoder, and this reads a single stack of layers.")
    host = host_copy(text)
    unpadded = _unpadding(model, host, gates)
    kinds = segments if reads_segments(model) else None
    output = _forward(model, ids, text, gates, unpadded, host, kinds, **outputs)
    if unpadded is not None:
        if output.hidden_states is not None:
            output.hidden_states = tuple(map(unpadded.add_padding, output.hidden_states))
        output.last_hidden_state = unpadded.add_padding(output.last_hidden_state)
    return output


def _unpadding(model: PreTrainedModel, host: Tensor, gates: Mapping[str, Tensor] | None = None) -> Unpadded | None:
    """Return the maps that remove padding; None where that is impossible or not worthwhile."""
    gated_by_row = any(part != "H" for part in gates or ())  # these gates multiply padded rows
    kernels = kernels_of(model)
    if gated_by_row or not kernels.unpadding or not uses_gated_attention(model) or _reads_apart(model, host):
        return None
    return Unpadded.if_worthwhile(host, model.device, kernels.varlen_attention, is_compiled(model))


def unpadded_inputs(model: PreTrainedModel, text: Tensor, unpadded: Unpadded, **padded: Tensor) -> dict[str, Any]:
    """Return the keyword arguments of an encoder that runs without padding.

    Args:
        model: A model with ``kernels_of(model).unpadding``.
        text: Index of the text of each token (rows, tokens); -1 at padding.
        unpadded: The maps that remove padding.
        padded: Other inputs (rows, tokens), by name, ``input_ids`` among them.
    """
    padded = {**padded, "position_ids": _position_ids(model, padded["input_ids"], text)}
    inputs: dict[str, Any] = {name: unpadded.values(values) for name, values in padded.items()}
    if unpadded.varlen:  # attention ignores the mask; a model takes one of this shape for a finished one
        masks: Any = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=text.device)
    else:
        masks = _attention_masks(model, text >= 0)
    return {**inputs, "attention_mask": masks, "unpadded": unpadded}


def _attention_masks(model: PreTrainedModel, real: Tensor) -> Any:
    """Return the attention mask of padded rows, or one mask per type of layer where a model has several."""
    if not getattr(model.config, "layer_types", None):
        return real[:, None, None, :]
    like = real[..., None].to(model.dtype)  # only its shape, type and device are used
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
    host: Tensor,
    segments: Tensor | None = None,
    earlier_only: bool = False,
    **arguments: Any,
) -> Any:
    """Run the encoder; ``arguments`` are such as ``output_hidden_states``. Padding is not added again."""
    if _reads_apart(model, host):
        return _forward_unpadded_rows(model, ids, text, host, segments, earlier_only=earlier_only, **arguments)
    if rotary_switch(model) is not None:
        reset_rotary(model)
    full = bool((host >= 0).all())
    packed = bool(((host[:, 1:] != host[:, :-1]) & (host[:, 1:] >= 0)).any())
    divided = packed or earlier_only
    options: dict[str, Any] = {}
    inputs = {"input_ids": ids} if segments is None else {"input_ids": ids, "token_type_ids": segments}
    if divided and (unpadded is None or not unpadded.varlen):
        options["block_mask"] = _sees(text, earlier_only)
    elif earlier_only:
        options["earlier_only"] = True
    if unpadded is not None:
        options |= unpadded_inputs(model, text, unpadded, **inputs)
    else:
        # The block mask alone separates padding from texts, and lets padding attend to itself. With both masks, a
        # query at padding would attend to nothing, and some accelerator kernels then return NaN, also for the
        # gradients of its row.
        options |= {**inputs, "attention_mask": torch.ones_like(ids) if divided else (text >= 0).long()}
        if earlier_only or (full and not packed and kernels_of(model).varlen_attention):
            options["attention_mask"] = None  # a model would look into a mask of ones
        if divided:
            options["position_ids"] = _position_ids(model, ids, text)
    others = dict(gates or {})
    if "H" in others:
        options["head_gates"] = others.pop("H")
    with use_gates(model, others) if others else nullcontext():
        return model.base_model(**options, **arguments, **_without_cache(model))


def _reads_apart(model: PreTrainedModel, host: Tensor) -> bool:
    """Return whether rows of different lengths need a forward pass each."""
    probe, real = probe_of(model), host >= 0
    if probe is not None and not probe.pads:
        return not bool(real.all())
    lengths, switch = real.sum(1), rotary_switch(model)
    return switch is not None and int(lengths.max()) > switch and int(lengths.min()) < int(lengths.max())


def _without_cache(model: PreTrainedModel) -> dict[str, bool]:
    """Return the argument that keeps a decoder from storing keys and values, which only generation needs."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.base_model.forward).parameters else {}


def _forward_unpadded_rows(
    model: PreTrainedModel, ids: Tensor, text: Tensor, host: Tensor, segments: Tensor | None, **arguments: Any
) -> Any:
    """Run the base model once per length of the rows, for a model whose outputs depend on padding or longer texts."""
    lengths = (host >= 0).sum(1)
    order, parts = [], []
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        order.append(rows)
        here = copy_to(rows, ids.device)
        kinds = None if segments is None else segments[here, :length]
        shorter, own = ids[here, :length], text[here, :length]
        parts.append(_forward(model, shorter, own, None, None, host[rows, :length], kinds, **arguments))
    back = copy_to(torch.cat(order).argsort(), ids.device)

    def joined(states: Iterable[Tensor]) -> Tensor:
        padded = [nn.functional.pad(part, (0, 0, 0, ids.shape[1] - part.shape[1])) for part in states]
        return torch.cat(padded).index_select(0, back)

    output = parts[0]
    layers = [part.hidden_states for part in parts] if output.hidden_states is not None else []
    output.last_hidden_state = joined(part.last_hidden_state for part in parts)
    output.hidden_states = tuple(map(joined, zip(*layers, strict=True))) or None
    return output


def check_packable(model: PreTrainedModel, length: int = 0) -> None:
    """Check that several texts can share a row without influencing each other.

    Args:
        model: A model that :func:`acclimate.models.probe.attach` has prepared.
        length: Maximum tokens per text.

    Raises:
        UserError: If they cannot.
    """
    probe, switch = probe_of(model), rotary_switch(model)
    long = switch is not None and length > switch
    if probe is None or not probe.packs or long:
        reason = "its attention was not replaced" if probe is None else probe.obstacles.get("packing")
        reason = reason or f"its rotary frequencies follow the longest text of more than {switch:,} tokens"
        raise UserError(f"Texts cannot share a row of {type(model).__name__}, since {reason}: use layout=padded.")


def _position_ids(model: PreTrainedModel, ids: Tensor, text: Tensor) -> Tensor:
    """Number the tokens of each text in a row as the model numbers the tokens of a single text: (rows, tokens).

    RoBERTa and similar models give all tokens with the padding id that id as position, and do not count them. Such
    tokens can occur in a text if the tokenizer pads with another id.
    """
    first, device = first_position(model), text.device
    if not first:  # by the texts alone, which are known to the host: one copy instead of many launches
        text = host_copy(text)
    counted = ids != first - 1 if first else torch.ones_like(text, dtype=torch.bool)
    number = counted.cumsum(1)
    starts = torch.ones_like(counted)
    starts[:, 1:] = text[:, 1:] != text[:, :-1]
    before = torch.where(starts, number - counted.long(), 0).cummax(1).values  # counted before the start of the text
    return torch.where(counted, number - before, 0) + first - 1 if first else copy_to(number - before - 1, device)


CLASSIFIER = ("ForSequenceClassification", "ForMultipleChoice")
TAGGER = ("ForTokenClassification", "ForQuestionAnswering")
"""Suffixes of the classes whose head reads the first token, or each token by itself. The loss of a head for question
answering also depends on padding, through its softmax over positions; nothing here uses it."""
REQUIRED_INPUTS, SUPPORTED_INPUTS = {"input_ids", "attention_mask"}, {"input_ids", "attention_mask", "token_type_ids"}
"""Inputs of calls that can run without padding. A call with other inputs or outputs runs unchanged."""
SKIPS = "acclimate_skips"
LOSS_ARGUMENTS = {"return_dict", "num_items_in_batch"}
"""Further arguments that the encoder gets and ignores."""


@contextmanager
def skip_unread_tokens(model: PreTrainedModel) -> Iterator[None]:
    """Return a context in which a text or token classifier skips padding and states that its head does not read.

    Within it, the encoder of a text classifier whose last layer can be cut returns only the hidden states of first
    tokens, (rows, 1, width). Other models skip less, or nothing. Outputs and gradients stay the same.
    """
    if hasattr(model.base_model.forward, SKIPS):  # evaluated in training
        yield
        return
    skip = _SkipUnreadTokens(model)
    with ExitStack() as stack:
        if skip.cuts:
            stack.enter_context(cut_last_layer(last_layer_ends(model), skip.first_tokens))
        if skip.pools:
            for encoder in filter(None, (model.base_model, getattr(model, ORIGINAL, None))):
                stack.callback(encoder.encoder.register_forward_hook(skip.keep_first_tokens).remove)
        if skip.unpads:
            stack.enter_context(skip.around_forward(model.base_model))
        yield


class _SkipUnreadTokens:
    """The hooks of one model.

    Attributes:
        cuts: Whether the last layer is cut.
        pools: Whether a pooler reads the first tokens of a whole last layer.
        bare: Whether there is no head, and callers read the last states of the encoder.
        unpads: Whether padding is removed.
        unpadded: The maps of the call in progress.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        name, kernels = type(model).__name__, kernels_of(model)
        # A layer that runs again in the backward pass would read other positions.
        self.cuts = name.endswith(CLASSIFIER) and kernels.last_layer_cut and not recomputes_layers(model)
        unpaddable = uses_gated_attention(model) and kernels.unpadding
        pooler = getattr(model.base_model, "pooler", None) is not None
        self.pools = unpaddable and pooler and not self.cuts and name.endswith(CLASSIFIER)
        self.bare = model.base_model is model
        every = not pooler and name.endswith((*CLASSIFIER, *TAGGER))
        self.unpads = unpaddable and (self.cuts or self.pools or self.bare or every)
        self.model = model
        self.unpadded: Unpadded | None = None

    @contextmanager
    def around_forward(self, encoder: Any) -> Iterator[None]:
        """Return a context in which the encoder skips padding, also where its ``forward`` is called, without hooks."""
        forward, shadowed = encoder.forward, "forward" in vars(encoder)

        @functools.wraps(forward)
        def without_padding(*inputs: Any, **options: Any) -> Any:
            inputs, options = self.remove_padding(inputs, options) or (inputs, options)
            return self.add_padding(forward(*inputs, **options))

        setattr(without_padding, SKIPS, True)
        encoder.forward = without_padding
        try:
            yield
        finally:
            del encoder.forward
            if shadowed:
                encoder.forward = forward

    def remove_padding(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Remove padding from the inputs of the encoder, where that pays."""
        self.unpadded = None
        if inputs:
            options = {"input_ids": inputs[0], **options}
        given = {name for name, value in options.items() if value is not None} - LOSS_ARGUMENTS
        if len(inputs) > 1 or not REQUIRED_INPUTS <= given <= SUPPORTED_INPUTS:
            return None
        # Real tokens of a row are one text; its number is the row's.
        mask = options["attention_mask"]
        host = host_copy(mask) - 1
        if bool((host[:, 1:] > host[:, :-1]).any()):  # padding on the left
            return None
        kernels = kernels_of(self.model)
        varlen = kernels.varlen_attention
        self.unpadded = Unpadded.if_worthwhile(host, mask.device, varlen, is_compiled(self.model))
        if self.unpadded is None:
            return None
        padded = {name: options[name] for name in given - {"attention_mask"}}
        text = with_host_copy(mask - 1, host)
        return (), {**options, **unpadded_inputs(self.model, text, self.unpadded, **padded)}

    def first_tokens(self, states: Tensor) -> Tensor:
        """Return the first token of each row (rows, 1, width)."""
        if self.unpadded is None or states.shape[1] == 1:
            return states[:, :1]
        return self.unpadded.first_states(states)

    def keep_first_tokens(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Pass only the first token of each row to the pooler."""
        if self.unpadded is not None:
            output.last_hidden_state = self.unpadded.first_states(output.last_hidden_state)

    def add_padding(self, output: Any) -> Any:
        """Add padding to the output of the encoder again, unless only first tokens are left."""
        unpadded, self.unpadded = self.unpadded, None
        if unpadded is not None and not self.cuts and not self.pools:
            output.last_hidden_state = unpadded.add_padding(output.last_hidden_state)
            if self.bare and getattr(output, "pooler_output", None) is not None:
                output.pooler_output = None  # of one row without padding, which is none of the given ones
        return output
