"""Loading any checkpoint with the head of an end task."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.device import enable_fast_fp32_matmul
from acclimate.errors import UserError
from acclimate.models import longest_text, use_kernels
from acclimate.models.attention import use_attention, uses_gated_attention
from acclimate.models.checkpoints import (
    UNREADABLE,
    check_folder,
    from_pretrained,
    load_error,
    silence_transformers,
    trusts_remote_code,
)
from acclimate.models.loading import load_tokenizer
from acclimate.modules import virtual_ids
from acclimate.tasks.kinds import LabelledTask

log = logging.getLogger(__name__)
MIN_LENGTH = 4
"""Minimum tokens per example: fewer leave no space for text between the special tokens."""


def load_with_head(
    auto: Any, path: str | Path, settings: dict[str, Any], max_length: int, device: torch.device, what: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, int]:
    """Load a checkpoint as a model of an end task in fp32, on the CPU.

    Missing weights are initialized from torch's global generator, so seed that first. These are the head and, in a
    checkpoint of a masked language model whose task head reads a pooler (BERT), that pooler, which starts near the
    identity. A checkpoint that already has such a head of the same size keeps it.

    Args:
        auto: An auto class such as ``AutoModelForSequenceClassification``.
        path: A model folder or a name on the Hugging Face Hub.
        settings: Entries of the configuration, ``num_labels`` among them.
        max_length: Maximum tokens per example; reduced to what the model can read.
        device: Where the model will run, which decides how attention is computed.
        what: Kind of model, for messages.

    Returns:
        The model, its tokenizer, and the tokens that it reads per example, virtual tokens included.

    Raises:
        UserError: If the model cannot be loaded, its encoder weights are incomplete, its tokenizer has no padding and
            no end token or too many tokens, or ``max_length`` leaves no space for text.
    """
    enable_fast_fp32_matmul()  # before any computation, so that results do not depend on earlier ones
    check_folder(path)
    tokenizer = load_tokenizer(path)
    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=trusts_remote_code(), **settings)
        with silence_transformers():
            model, info = from_pretrained(
                auto,
                path,
                config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # for the head of another task; the encoder is checked below
            )
    except UNREADABLE as error:
        raise UserError(f"'{path}' cannot be loaded as a {what}: {load_error(error, path)}") from error
    kernels = use_kernels(model, device)
    if kernels.eager_attention or uses_gated_attention(model):
        with suppress(ValueError, AttributeError):  # an architecture with its own attention keeps it
            use_attention(model, kernels)
    fresh = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    lost = sorted(name for name in fresh if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name)
    if lost:
        raise UserError(f"The encoder weights in '{path}' are incomplete: {len(lost)} missing, such as {lost[0]}.")
    _initialize_pooler(model, fresh)
    rows = model.get_input_embeddings().weight.shape[0]
    if tokenizer.pad_token_id is None:  # decoders
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer of '{path}' has neither a padding nor an end token; add one of them.")
    if len(tokenizer) > rows:
        raise UserError(f"The tokenizer of '{path}' has {len(tokenizer)} tokens, its model only {rows}.")
    model.config.pad_token_id = tokenizer.pad_token_id
    wanted = max_length + len(virtual_ids(tokenizer))
    length = min(wanted, longest_text(model) or tokenizer.model_max_length, tokenizer.model_max_length)
    if length < MIN_LENGTH:
        raise UserError(f"max_length={max_length} leaves no space for text; give at least {MIN_LENGTH} tokens.")
    if length < wanted:
        _warn_texts_truncated(str(path), length, wanted)
    return model, tokenizer, length


@cache  # once, not for each seed
def _warn_texts_truncated(path: str, length: int, wanted: int) -> None:
    log.warning("'%s' reads at most %d tokens, so texts are truncated to that instead of %d.", path, length, wanted)


def read_config(path: str | Path) -> PretrainedConfig:
    """Read the configuration of a model.

    Raises:
        UserError: If there is no model.
    """
    check_folder(path)
    try:
        return AutoConfig.from_pretrained(str(path), trust_remote_code=trusts_remote_code())
    except UNREADABLE as error:
        raise UserError(f"No model could be read from '{path}': {load_error(error, path)}") from error


def is_classifier_of(path: str | Path, task: LabelledTask) -> bool:
    """Return whether a checkpoint already is a classifier of a task's labels, in their order.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        task: The task.

    Raises:
        UserError: If there is no model.
    """
    config = read_config(path)
    names = getattr(config, "id2label", None) or {}
    return (
        any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
        and [names.get(place) for place in range(len(names))] == task.labels
        and (config.problem_type == "multi_label_classification") == (task.kind == "multi_label")
    )


def _initialize_pooler(model: PreTrainedModel, fresh: list[str]) -> None:
    """Add the identity to the random matrix of a new pooler.

    A random matrix in front of a random classifier destroys the representation of the first token, and a small model
    needs several epochs to recover it.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in fresh:
            weight = parameters.get(name)
            if ".pooler." in name and weight is not None and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
                weight.add_(torch.eye(len(weight)))
