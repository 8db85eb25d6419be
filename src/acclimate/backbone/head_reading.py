"""A model of a task computes what its head reads: no padding, and a classifier ends with the first token of each row.

The model is called as always, with padded rows; hooks leave out the rest. Same outputs but at padding, same gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.backbone.attention import NAME
from acclimate.backbone.encoding import unpadded_inputs
from acclimate.backbone.ensembles import ORIGINAL
from acclimate.backbone.last_layer import ends_by_token, only_tokens
from acclimate.backbone.unpadded import Unpadded, leaves_padding_out

CLASSIFIER, TAGGER = "ForSequenceClassification", "ForTokenClassification"
"""How classes end whose head, in models whose last layer can end early, reads the first token, or each by itself.
Question answering is no such class: padding takes part in its softmax over places."""
NEEDED, READ = {"input_ids", "attention_mask"}, {"input_ids", "attention_mask", "token_type_ids"}
"""Inputs that can be read without padding; a call with others, or that asks for more outputs, is read with it."""
OF_LOSS = {"return_dict", "num_items_in_batch"}
"""What the encoder is handed beside these and does not read."""


@contextmanager
def only_what_the_head_reads(model: PreTrainedModel) -> Iterator[None]:
    """Return a context in which a classifier of texts or tokens leaves out padding, and what follows it.

    In it the last hidden states of the encoder of a classifier of texts are (rows, 1, width), the first tokens, if it
    is one of :data:`acclimate.backbone.last_layer.KIN`. Other models leave out less, or nothing.
    """
    reading = _Reading(model)
    with ExitStack() as stack:
        if reading.first:
            stack.enter_context(only_tokens(model, reading.first_tokens))
        if reading.pooled:
            for reader in filter(None, (model.base_model, getattr(model, ORIGINAL, None))):
                stack.callback(reader.encoder.register_forward_hook(reading.first_only).remove)
        if reading.possible:
            before = model.base_model.register_forward_pre_hook(reading.close, with_kwargs=True)
            after = model.base_model.register_forward_hook(reading.open)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class _Reading:
    """The hooks, and between them the way to leave padding out of what is being read."""

    def __init__(self, model: PreTrainedModel) -> None:
        kind = type(model).__name__
        self.first = kind.endswith(CLASSIFIER) and ends_by_token(model)
        own = model.config._attn_implementation == NAME and leaves_padding_out(model)
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
        given = {name for name, value in options.items() if value is not None} - OF_LOSS
        if len(inputs) > 1 or not NEEDED <= given <= READ:
            return None
        text = options["attention_mask"] - 1
        if bool((text[:, 1:] > text[:, :-1]).any()):  # padding on the left
            return None
        self.unpadded = Unpadded.if_it_pays(text)
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
