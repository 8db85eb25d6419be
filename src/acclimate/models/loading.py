"""Load a language model and its tokenizer, and initialize a language-model head that the checkpoint lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.device import enable_fast_fp32_matmul
from acclimate.errors import UserError
from acclimate.model_kinds import ModelKind, kind_of, kind_of_checkpoint
from acclimate.models.batching import chosen_positions
from acclimate.models.checkpoints import (
    UNREADABLE,
    check_folder,
    from_pretrained,
    load_config,
    load_error,
    silence_transformers,
)
from acclimate.models.families import Family, family_of, language_head
from acclimate.models.tokenizers import fit_tokenizer, load_tokenizer

_VIRTUAL_TOKEN_NAME = re.compile(r"\[VIRTUAL\d+\]")
TASK_HEAD_PREFIXES = ("classifier", "qa", "seq_classif", "summary")
"""Prefixes of the configuration entries that hold dropout probabilities of end-task heads."""


def logits_at(head: Callable[[Tensor], Tensor], hidden: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits (chosen, vocabulary) at the chosen positions only, in row order.

    Args:
        head: From :func:`language_head`.
        hidden: (rows, tokens, width).
        chosen: Boolean (rows, tokens).
    """
    return head(hidden.flatten(0, 1)[chosen_positions(chosen)])[: int(chosen.sum())]


def head_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Return the parameters of the head by name, without the decoder weight if it is tied to the embeddings."""
    inside = {id(parameter) for parameter in model.base_model.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def initialize_head(model: PreTrainedModel, missing: set[str]) -> None:
    """Initialize a missing head: square layers near the identity, biases zero, the decoder tied to the embeddings.

    Near the identity the warm-up has little to learn, since hidden states already resemble the embedding of their
    word.

    Args:
        model: The model.
        missing: Names of the parameters that the checkpoint did not have.
    """
    model.config.tie_word_embeddings = True
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in head_parameters(model).items():
            if name not in missing:
                continue
            if parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1]:
                noise = torch.randn(parameter.shape, generator=generator) * 0.01
                parameter.copy_(torch.eye(parameter.shape[0]) + noise)
            elif parameter.dim() == 1 and name.endswith("bias"):
                parameter.zero_()


@dataclass
class LanguageModel:
    """A language model and its tokenizer.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        absent_head: Whether the checkpoint lacked the language-model head, or a part of it. The head then needs
            training before its losses mean anything.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    absent_head: bool = False

    @property
    def kind(self) -> ModelKind:
        """What kind of language model it is."""
        return kind_of(self.model)

    @property
    def family(self) -> Family:
        """The row of its architecture in the table of families."""
        return family_of(self.model.config)


def load_language_model(path: str | Path, dropout: float | None = None) -> LanguageModel:
    """Load a language model in fp32, whatever the type of its weights, and its tokenizer.

    Args:
        path: A model folder, or a name on the Hub.
        dropout: Probability of every dropout in the encoder, in place of those of the configuration. The configuration
            keeps its values, so that a saved model has the original ones.

    Returns:
        The model in evaluation mode.

    Raises:
        UserError: If there is no model, it cannot be a language model of a known kind, its tokenizer does not fit, or
            weights of its encoder are missing or have the wrong shape.
    """
    enable_fast_fp32_matmul()  # before any product, so that results do not depend on what the process did earlier
    check_folder(path)
    config = load_config(path)
    kind = kind_of_checkpoint(config.architectures)
    try:
        with silence_transformers():
            before = _set_dropout(path, config, dropout)
            model, info = from_pretrained(
                getattr(transformers, kind.auto_class),
                path,
                config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # checked below
            )
            for name, value in before.items():
                setattr(model.config, name, value)
    except UNREADABLE as error:
        raise UserError(f"No language model could be loaded from '{path}': {load_error(error, path)}") from error
    missing = check_encoder_weights(model, info, path)
    tokenizer = load_tokenizer(path)
    fit_tokenizer(tokenizer, model, path)
    if kind.uses_masking and tokenizer.mask_token_id is None:
        raise UserError(f"The tokenizer of '{path}' has no mask token, so the model cannot be trained by masking.")
    language_head(model)
    absent = bool(missing & set(head_parameters(model)))
    if absent and not kind.trains_missing_head:
        raise UserError(f"The model in '{path}' has no language-model head; use a checkpoint with one.")
    if absent:
        initialize_head(model, missing)
    model.eval()
    return LanguageModel(model, tokenizer, absent)


def check_encoder_weights(model: Any, info: dict[str, Any], path: str | Path) -> set[str]:
    """Check that a checkpoint had all weights of the encoder, apart from a pooler.

    Args:
        model: The model.
        info: The loading information of ``transformers``.
        path: Where it was loaded from.

    Returns:
        The names of the weights that are new.

    Raises:
        UserError: If weights of the encoder are missing or have another shape.
    """
    prefix = f"{model.base_model_prefix}."
    for name, stored, expected in sorted(info["mismatched_keys"]):
        if name.startswith(prefix) and ".pooler." not in name:
            raise UserError(
                f"The weights in '{path}' do not fit its config.json: {name} has the shape {tuple(stored)} instead of "
                f"{tuple(expected)}."
            )
    fresh = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    lost = sorted(name for name in fresh if name.startswith(prefix) and ".pooler." not in name)
    if lost:
        first = {name.partition(".")[0] for name in info["unexpected_keys"]}  # _orig_mod of torch.compile, module
        hint = (
            f" All names in the file begin with '{first.pop()}.', which a wrapper around the model added; save the "
            "model that is inside."
            if len(first) == 1 and not any(hasattr(model, name) for name in first)
            else ""
        )
        raise UserError(
            f"The encoder weights in '{path}' are incomplete: {len(lost)} missing, such as {lost[0]}.{hint}"
        )
    return fresh


def _set_dropout(path: str | Path, config: PretrainedConfig, dropout: float | None) -> dict[str, float]:
    """Set the dropout probabilities of a configuration, if one is given; return the previous ones by name."""
    if dropout is None:
        return {}
    if not 0 <= dropout < 1:
        raise UserError(f"The dropout must be from 0 to below 1, not {dropout:g}.")
    names = dropout_names(config)
    if not names:
        raise UserError(f"The configuration of '{path}' has no dropout entry, so none can be set; leave dropout out.")
    before = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, float(dropout))
    return before


def virtual_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the virtual tokens that the tokenizer appends to every text, in order."""
    added = tokenizer.get_added_vocab()
    return sorted(index for name, index in added.items() if _VIRTUAL_TOKEN_NAME.fullmatch(name))


def dropout_names(config: PretrainedConfig) -> list[str]:
    """Return the entries of a configuration that hold a dropout probability of the encoder."""
    return [
        name
        for name, value in config.to_dict().items()
        if "dropout" in name and not name.startswith(TASK_HEAD_PREFIXES) and isinstance(value, float | int)
    ]


def dropout_rates(model: nn.Module) -> list[float]:
    """Return the distinct dropout probabilities in a model, in ascending order."""
    rates: set[float] = set()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            rates.add(float(module.p))
        attention = getattr(module, "attention_dropout", None)  # ModernBERT passes a number to the attention function
        if isinstance(attention, float | int):
            rates.add(float(attention))
    return sorted(rates)
