"""Table of properties of architectures that are not in their configurations.

An architecture without a row uses generic code and runs with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, TrainerCallback

from acclimate.base.device import TYPES, Precision
from acclimate.base.errors import UserError
from acclimate.kernels import Kernels, choose
from acclimate.models.kinds import find_kind

KERNELS_ATTRIBUTE, PROBE_ATTRIBUTE = "acclimate_kernels", "acclimate_probe"
COMPILED_ATTRIBUTE = "acclimate_compiled"
COLUMN_MULTIPLE = 8
"""Tensor cores multiply matrices whose rows begin at multiples of 16 bytes."""


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        tokenwise: Whether everything except attention processes each token by itself and the encoder takes
            ``position_ids``, so that it can run without padding.
        last_layer_end: Where the last layer can be cut, if anywhere: the suffix of the name of the list of layers, and
            the submodule of a layer that combines the context vectors with the residual stream.
        positions_after_padding: Whether positions are numbered from the padding id plus one; None to read it from the
            position embeddings.
        tokenizer: The kind of tokenizer that ``pretrain`` trains for it by default; None if ``pretrain`` does not
            offer the architecture.
    """

    tokenwise: bool = False
    last_layer_end: tuple[str, str] | None = None
    positions_after_padding: bool | None = None
    tokenizer: Literal["wordpiece", "byte-bpe"] | None = None


_BERT = Family(True, ("encoder.layer", "attention.output"), False, "wordpiece")
_ROBERTA = Family(True, ("encoder.layer", "attention.output"), True, "byte-bpe")
FAMILIES: dict[str, Family] = {
    "albert": Family(True, None, False, "wordpiece"),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "distilbert": Family(True, None, False, "wordpiece"),
    "electra": Family(True, ("encoder.layer", "attention.output"), False, "wordpiece"),
    "modernbert": Family(True, None, False, "byte-bpe"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""By ``model_type`` of the configuration."""
UNKNOWN = Family()


@dataclass(frozen=True)
class Check:
    """A comparison of two readings of the same tokens by a model.

    Attributes:
        name: What is compared.
        difference: Largest difference of the logits (of the hidden states, without a language-model head), relative to
            the largest value.
        tolerance: Its bound.
        at_least: Whether the bound is a minimum.
    """

    name: str
    difference: float
    tolerance: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the difference is on the right side of its bound."""
        return self.difference >= self.tolerance if self.at_least else self.difference <= self.tolerance


@dataclass(frozen=True)
class Probe:
    """Properties of a model that reads rows, measured on the model itself by :func:`acclimate.models.probe.attach`.

    Attributes:
        attention: The attention implementation that it runs.
        own_attention: The one that it was loaded with.
        checks: What was measured, in order.
        obstacles: Reasons why something is not possible, by name: ``attention`` (the gated attention function),
            ``gates`` (factors on heads), ``packing`` (several texts in a row), ``padding`` (rows of several lengths).
        varlen: Whether its texts can be read without padding by the kernel of an accelerator, which an architecture
            that is not in the table of families has to prove.
    """

    attention: str
    own_attention: str
    checks: tuple[Check, ...]
    obstacles: Mapping[str, str]
    varlen: bool = False

    @property
    def packs(self) -> bool:
        """Whether texts can share a row without influencing each other."""
        return "packing" not in self.obstacles

    @property
    def pads(self) -> bool:
        """Whether padding leaves the outputs unchanged."""
        return "padding" not in self.obstacles


def probe_of(model: PreTrainedModel) -> Probe | None:
    """Return what :func:`acclimate.models.probe.attach` has measured on a model; None before."""
    found: Probe | None = getattr(model, PROBE_ATTRIBUTE, None)
    return found


def family_of(config: PretrainedConfig) -> Family:
    """Return the row of an architecture, or an empty one if it is not in the table."""
    return FAMILIES.get(config.model_type, UNKNOWN)


def language_head(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states (..., width) to logits (..., vocabulary) of a language model.

    It is the ``forward`` of the model itself around given hidden states, so it has every scale, bound and bias of the
    architecture. Projecting only the positions that a loss reads is exact, and saves most of the cost of a small
    model.

    Raises:
        UserError: If the model has no base model.
    """
    if model.base_model is model and not _has_stacks(model):
        raise UserError(f"{type(model).__name__} has no base model that acclimate could read hidden states from.")
    return partial(_logits, model)


def _has_stacks(model: PreTrainedModel) -> bool:
    """Return whether an encoder-decoder has its two stacks next to its head, and no base model, as T5 has."""
    return bool(getattr(model.config, "is_encoder_decoder", False)) and "decoder" in model._modules


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    name, states = model.base_model_prefix, hidden.reshape(1, -1, hidden.shape[-1])
    unread = torch.zeros(states.shape[:2], dtype=torch.long, device=hidden.device)
    inputs: dict[str, Any] = {"input_ids": unread}
    if model.base_model is model:
        name, inputs = "decoder", {"decoder_input_ids": unread, "encoder_outputs": _Output((states,))}
    base = model._modules[name]
    model._modules[name] = _GivenStates(base, states)  # type: ignore[assignment]
    try:
        with _aligned(model.get_output_embeddings()) if hidden.device.type != "cpu" else nullcontext():
            logits: Tensor = model.forward(**inputs).logits
    finally:
        model._modules[name] = base
    return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


@contextmanager
def _aligned(head: nn.Module) -> Iterator[None]:
    """Return a context in which a vocabulary projection computes a multiple of :data:`COLUMN_MULTIPLE` columns.

    Matrix products of other sizes, such as the 50,265 words of RoBERTa, take several times as long on a GPU.
    """
    if not isinstance(head, nn.Linear) or type(head) is not nn.Linear or head.out_features % COLUMN_MULTIPLE == 0:
        yield
        return
    if type(head.weight) is not nn.Parameter or "forward" in vars(head):  # sharded weights; the kernels of the CPU
        yield
        return
    head.forward = partial(_project_aligned, head)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del head.forward


def _project_aligned(head: nn.Linear, states: Tensor) -> Tensor:
    """Return the output of a linear layer, computed with columns of zeros at the end that are cut off."""
    kind, missing = states.device.type, -head.out_features % COLUMN_MULTIPLE
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
    weight = nn.functional.pad(head.weight.to(dtype), (0, 0, 0, missing))
    bias = None if head.bias is None else nn.functional.pad(head.bias.to(dtype), (0, missing))
    return nn.functional.linear(states.to(dtype), weight, bias)[..., : head.out_features]


class _GivenStates:
    """Takes the place of a base model, returns given hidden states, and has all its attributes."""

    def __init__(self, base: Any, states: Tensor) -> None:
        self._base, self._states = base, states

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._base, name)
        return self if isinstance(found, PreTrainedModel) else found  # OPT calls the decoder inside its base model

    def __call__(self, *_: Any, **__: Any) -> _Output:
        return _Output((self._states,))


class _Output(tuple[Tensor, ...]):
    """The output of a base model: hidden states, and None for all else."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


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


def rotary_switch(model: PreTrainedModel) -> int | None:
    """Return the length above which rotary frequencies follow the longest text of a forward pass (longrope, dynamic).

    None if they never do. A short text that is read together with a longer one is then computed otherwise than alone.
    """
    config = model.config.get_text_config()
    given: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = [one for one in given.values() if isinstance(one, dict)] or [given]  # one for each type of layer, or one
    own = getattr(config, "max_position_embeddings", None) or 0
    found = [
        one.get("original_max_position_embeddings") or own
        for one in kinds
        if one.get("rope_type") in ("longrope", "dynamic")
    ]
    return min(found, default=None)


def reset_rotary(model: PreTrainedModel) -> None:
    """Let dynamic rotary frequencies follow the next forward pass alone, and not the longest text that came before."""
    module: Any
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq = module.original_inv_freq.to(module.inv_freq.device)
            module.max_seq_len_cached = module.original_max_seq_len


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


def is_compiled(model: PreTrainedModel) -> bool:
    """Return whether the layers of a model are compiled (:mod:`acclimate.models.compiling`)."""
    return hasattr(model, COMPILED_ATTRIBUTE)


def use_kernels(model: PreTrainedModel, device: torch.device, sharded: bool = False) -> Kernels:
    """Choose the kernels of a model for the device that it will run on, and replace layers with faster ones.

    Args:
        model: The model.
        device: The device.
        sharded: Whether its weights will be sharded among processes.

    Raises:
        UserError: If ``ACCLIMATE_KERNELS`` is neither ``auto`` nor ``torch``.
    """
    kernels = _choose(model, device)
    kernels = kernels.for_shards() if sharded else kernels
    kernels.replace_layers(model)
    setattr(model, KERNELS_ATTRIBUTE, kernels)
    return kernels


def reads_segments(model: PreTrainedModel) -> bool:
    """Return whether a model distinguishes two segments.

    This is read from its configuration, since a tokenizer may return segment ids for a model without segments, or, if
    it was saved without its class, none for a model that was trained with them.
    """
    return getattr(model.config, "type_vocab_size", 0) > 1


def step_context(
    model: PreTrainedModel, precision: Precision, reuse_grad_buffer: bool = False
) -> Callable[[], AbstractContextManager[None]]:
    """Return a factory of contexts for the steps of a training: see :meth:`acclimate.kernels.Kernels.step_context`."""
    return kernels_of(model).step_context(model, precision, reuse_grad_buffer)


def gradient_may_change(parameter: torch.Tensor) -> bool:
    """Return whether a part of a gradient is still to be added when the context of a step ends."""
    return Kernels.gradient_is_pending(parameter)


def training_callbacks(model: PreTrainedModel) -> list[TrainerCallback]:
    """Return the callbacks that a ``Trainer`` of this model needs."""
    return kernels_of(model).callbacks()


def describe_computation(model: PreTrainedModel) -> dict[str, Any]:
    """Return what distinguishes results of this model on this device from results of plain torch, for cache keys."""
    return asdict(kernels_of(model))


def describe_attention(model: PreTrainedModel, precision: Precision) -> str:
    """Return how a model computes attention on its device in a precision, for the log."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 1
    width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", heads) // heads
    return kernels_of(model).describe_attention(TYPES.get(precision, torch.float32), int(width))


def reads_unpadded(model: PreTrainedModel) -> bool:
    """Return whether attention reads texts without padding."""
    return kernels_of(model).varlen_attention


def reads_positions(model: PreTrainedModel) -> bool:
    """Return whether :func:`acclimate.models.encoding.encode_positions` can read this model."""
    return kernels_of(model).last_layer_cut


def _choose(model: PreTrainedModel, device: torch.device) -> Kernels:
    config = model.config
    # A decoder caches keys by row, and a chunked feed-forward splits rows: both need padded rows.
    by_row = getattr(config, "is_decoder", False) or getattr(config, "chunk_size_feed_forward", 0)
    tokenwise = family_of(config).tokenwise and not by_row
    kernels = choose(model, device, tokenwise=tokenwise, cuttable=bool(last_layer_ends(model)))
    kind = find_kind(type(model).__name__)
    # Without a mask torch skips the upper half of causal scores and stores none: 0.9 to 2.7 times as fast as our
    # kernel (rows of 128 to 2,048 tokens, two thirds of that with a mask).
    return replace(kernels, eager_attention=False) if kind and not kind.uses_masking else kernels
