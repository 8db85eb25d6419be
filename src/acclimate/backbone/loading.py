"""Loading a model and its tokenizer, with one clear line where that fails, and no silently random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.backbone.checkpoints import UNREADABLE, from_pretrained, quiet, trusted, why
from acclimate.backbone.device import fast_fp32_matmul
from acclimate.backbone.dropout import dropout_names
from acclimate.backbone.identity import check_folder, local_folder
from acclimate.backbone.language_head import head_parameters, language_head, start_head
from acclimate.errors import UserError


@dataclass
class LoadedModel:
    """A masked language model with what is known about how it was loaded."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    absent_head: bool
    """The checkpoint held no (or not the whole) masked-LM head: it needs a warm-up before its losses mean anything."""


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Raises:
        UserError: If there is none.
    """
    folder = local_folder(path)
    if folder and not folder.exists():
        raise UserError(f"No tokenizer could be loaded from '{path}': there is no such folder.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trusted())
    except UNREADABLE as error:
        raise UserError(f"No tokenizer could be loaded from '{path}': {why(error, path)}") from error
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up, since its files are missing
        raise UserError(f"The tokenizer in '{path}' knows no word; add the files of its vocabulary to the folder.")
    return tokenizer


def load_masked_lm(path: str | Path, dropout: float | None = None) -> LoadedModel:
    """Load a masked language model in fp32, whatever the file holds, and its tokenizer.

    Args:
        path: A model folder, or a name on the hub.
        dropout: Probability of every dropout in the encoder, in place of those of its configuration, which stays as it
            is: who saves the model saves the old ones.

    Returns:
        The model in evaluation mode, the tokenizer, and whether the head was absent.

    Raises:
        UserError: If there is no model there, it has no masked-LM form, or encoder weights are missing.
    """
    fast_fp32_matmul()  # whoever computes loads first: what a process did before must not change a bit
    check_folder(path)
    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=trusted())
        with quiet():
            before = _with_dropout(path, config, dropout)
            model, info = from_pretrained(AutoModelForMaskedLM, path, config, dtype=torch.float32)
            for name, value in before.items():
                setattr(model.config, name, value)
    except UNREADABLE as error:
        raise UserError(f"No masked language model could be loaded from '{path}': {why(error, path)}") from error
    tokenizer = load_tokenizer(path)
    if tokenizer.mask_token_id is None:
        raise UserError(f"The tokenizer of '{path}' has no mask token, so the model cannot be trained by masking.")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        raise UserError(f"The tokenizer of '{path}' has {len(tokenizer)} tokens, its model only {vocabulary}.")
    language_head(model)
    missing = set(info["missing_keys"])
    prefix = model.base_model_prefix + "."
    lost = sorted(name for name in missing if name.startswith(prefix))
    if lost:
        raise UserError(f"The encoder weights in '{path}' are incomplete: {len(lost)} missing, such as {lost[0]}.")
    absent = bool(missing & set(head_parameters(model)))
    if absent:
        start_head(model, missing)
    model.eval()
    return LoadedModel(model, tokenizer, absent)


def _with_dropout(path: str | Path, config: PretrainedConfig, dropout: float | None) -> dict[str, float]:
    """Set the dropout of a configuration, if one is given; return what it was."""
    if dropout is None:
        return {}
    if not 0 <= dropout < 1:
        raise UserError(f"Dropout is a probability, from 0 to below 1, not {dropout:g}.")
    names = dropout_names(config)
    if not names:
        raise UserError(f"The configuration of '{path}' knows no dropout, so none can be set; leave it out.")
    before = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, float(dropout))
    return before
