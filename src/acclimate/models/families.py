"""What acclimate knows about each architecture beyond its configuration, in one table.

An architecture without a row uses generic code: its head is found by attribute names, and it runs with padding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, TrainerCallback

from acclimate.device import Precision
from acclimate.errors import UserError
from acclimate.kernels import Kernels, choose

KERNELS_ATTRIBUTE = "acclimate_kernels"


@dataclass(frozen=True)
class LMHead:
    """How a model turns hidden states (..., width) into logits (..., vocabulary).

    Attributes:
        attributes: Names of the submodules that form the head.
        logits: The function from the model and hidden states to logits.
    """

    attributes: tuple[str, ...]
    logits: Callable[[Any, Tensor], Tensor]


def _distilbert_logits(model: Any, hidden: Tensor) -> Tensor:
    return model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(hidden))))


BERT_HEAD = LMHead(("cls",), lambda model, hidden: model.cls(hidden))
ELECTRA_HEAD = LMHead(
    ("generator_lm_head", "generator_predictions"),
    lambda model, hidden: model.generator_lm_head(model.generator_predictions(hidden)),
)
DISTILBERT_HEAD = LMHead(("vocab_projector", "vocab_layer_norm", "vocab_transform"), _distilbert_logits)
ALBERT_HEAD = LMHead(("predictions",), lambda model, hidden: model.predictions(hidden))
MODERNBERT_HEAD = LMHead(("head", "decoder"), lambda model, hidden: model.decoder(model.head(hidden)))
ROBERTA_HEAD = LMHead(("lm_head",), lambda model, hidden: model.lm_head(hidden))
DEBERTA_HEAD = LMHead(
    ("lm_predictions",),
    lambda model, hidden: model.lm_predictions(hidden, model.base_model.embeddings.word_embeddings),
)
HEADS = (BERT_HEAD, ELECTRA_HEAD, DISTILBERT_HEAD, ALBERT_HEAD, MODERNBERT_HEAD, ROBERTA_HEAD, DEBERTA_HEAD)
"""Tried in this order for an architecture without a row."""


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        head: The language-model head; None to try all :data:`HEADS`.
        tokenwise: Whether everything except attention processes each token by itself and the encoder takes
            ``position_ids``, so that it can run without padding.
        last_layer_end: Where the last layer can be cut, if anywhere: the suffix of the name of the list of layers, and
            the submodule of a layer that combines the context vectors with the residual stream.
        positions_after_padding: Whether positions are numbered from the padding id plus one; None to read it from the
            position embeddings.
        tokenizer: The kind of tokenizer that ``pretrain`` trains for it by default; None if ``pretrain`` does not
            offer the architecture.
    """

    head: LMHead | None = None
    tokenwise: bool = False
    last_layer_end: tuple[str, str] | None = None
    positions_after_padding: bool | None = None
    tokenizer: Literal["wordpiece", "byte-bpe"] | None = None


_BERT = Family(BERT_HEAD, True, ("encoder.layer", "attention.output"), False, "wordpiece")
_ROBERTA = Family(ROBERTA_HEAD, True, ("encoder.layer", "attention.output"), True, "byte-bpe")
FAMILIES: dict[str, Family] = {
    "albert": Family(ALBERT_HEAD, True, None, False, "wordpiece"),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "distilbert": Family(DISTILBERT_HEAD, True, None, False, "wordpiece"),
    "electra": Family(ELECTRA_HEAD, True, ("encoder.layer", "attention.output"), False, "wordpiece"),
    "modernbert": Family(MODERNBERT_HEAD, True, None, False, "byte-bpe"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""By ``model_type`` of the configuration."""
UNKNOWN = Family()


def family_of(config: PretrainedConfig) -> Family:
    """Return the row of an architecture, or an empty one if it is not in the table."""
    return FAMILIES.get(config.model_type, UNKNOWN)


def language_head(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states (..., width) to logits (..., vocabulary) of a language model.

    Projecting only the positions that a loss reads is exact, and saves most of the cost of a small model.

    Raises:
        UserError: If no head is found.
    """
    head = family_of(model.config).head
    for candidate in HEADS if head is None else (head,):
        if all(hasattr(model, name) for name in candidate.attributes):
            return partial(candidate.logits, model)
    raise UserError(f"{type(model).__name__} has no language-model head that acclimate knows.")


def first_position(model: PreTrainedModel) -> int:
    """Return the number of the first position: 0, or the padding id plus one in models such as RoBERTa."""
    after_padding = family_of(model.config).positions_after_padding
    if after_padding is False:
        return 0
    embeddings = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return 0 if padding is None else padding + 1


def longest_text(model: PreTrainedModel) -> int | None:
    """Return the maximum tokens per text that a model has positions for; None if its configuration does not say."""
    positions = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None else positions - first_position(model)


def last_layer_ends(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules at which the last layer can be cut: none, one, or two in an ensemble."""
    place = family_of(model.config).last_layer_end
    if place is None or model.config.chunk_size_feed_forward:
        return []
    layers, end = place
    found: list[Any] = [module for name, module in model.named_modules() if name.endswith(layers)]
    return [module[-1].get_submodule(end) for module in found]


def kernels_of(model: PreTrainedModel) -> Kernels:
    """Return the kernels of a model: chosen at the first call, and again after it has moved to another device."""
    kernels: Kernels | None = getattr(model, KERNELS_ATTRIBUTE, None)
    if kernels is None or kernels.device != model.device.type:
        kernels = _choose(model, model.device)
        setattr(model, KERNELS_ATTRIBUTE, kernels)
    return kernels


def use_kernels(model: PreTrainedModel, device: torch.device) -> Kernels:
    """Choose the kernels of a model for the device that it will run on, and replace layers with faster ones.

    Raises:
        UserError: If ``ACCLIMATE_KERNELS`` is neither ``auto`` nor ``torch``.
    """
    kernels = _choose(model, device)
    kernels.replace_layers(model)
    setattr(model, KERNELS_ATTRIBUTE, kernels)
    return kernels


def step_context(
    model: PreTrainedModel, precision: Precision, reuse_grad_buffer: bool = False
) -> Callable[[], AbstractContextManager[None]]:
    """Return a factory of contexts for the steps of a training: see :meth:`acclimate.kernels.Kernels.step_context`."""
    return kernels_of(model).step_context(model, precision, reuse_grad_buffer)


def training_callbacks(model: PreTrainedModel) -> list[TrainerCallback]:
    """Return the callbacks that a ``Trainer`` of this model needs."""
    return kernels_of(model).callbacks()


def describe_computation(model: PreTrainedModel) -> dict[str, Any]:
    """Return what distinguishes results of this model on this device from those of plain torch, for cache keys."""
    return asdict(kernels_of(model))


def reads_positions(model: PreTrainedModel) -> bool:
    """Return whether :func:`acclimate.models.encoding.encode_positions` can read this model."""
    return kernels_of(model).last_layer_cut


def _choose(model: PreTrainedModel, device: torch.device) -> Kernels:
    config = model.config
    # A decoder caches keys by row, and a chunked feed-forward splits rows: both need padded rows.
    by_row = getattr(config, "is_decoder", False) or getattr(config, "chunk_size_feed_forward", 0)
    tokenwise = family_of(config).tokenwise and not by_row
    return choose(model, device, tokenwise=tokenwise, cuttable=bool(last_layer_ends(model)))
