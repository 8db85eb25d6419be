"""The configuration of a model that is trained from scratch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.backbone.device import forked_chance
from acclimate.backbone.identity import local_folder
from acclimate.errors import UserError, did_you_mean, first_line, unknown

FAMILIES = ("albert", "bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
"""Layers and width of Turc et al., 2019 ("Well-Read Students Learn Better"); a head for every 64 units of width."""
BEHIND_PADDING = ("camembert", "roberta", "xlm-roberta")
"""Their first two positions are never used, so that 512 tokens take 514."""


def configure(architecture: str | Path, size: str | None = None, changes: dict[str, Any] | None = None) -> Any:
    """Make the configuration of a model.

    Args:
        architecture: One of :data:`FAMILIES`; or a folder, a JSON file or a model of the hub (with ``/`` in its name)
            whose configuration is taken.
        size: One of :data:`SIZES`: layers, width and heads; the feed-forward layers keep their ratio to the width.
            None for what the configuration says, of a family the defaults of ``transformers``.
        changes: Values of single settings, as ``{"hidden_size": 256}``; strings are read as JSON where they can be.

    Returns:
        A configuration; what the vocabulary decides is still to come (see :func:`fit_vocabulary`).

    Raises:
        UserError: If the architecture or a setting is unknown, or the values do not make a model.
    """
    config = _start(str(architecture))
    named = {**_sized(config, size), **_read(config, changes or {})}
    try:
        config = type(config).from_dict({**config.to_dict(), **named})
        width, heads = config.hidden_size, config.num_attention_heads
        if min(width, heads, config.num_hidden_layers) < 1:
            raise UserError("Layers, width and heads of a model must be 1 or more.")
        if width % heads:
            raise UserError(
                f"hidden_size {width} cannot be split among {heads} heads: set num_attention_heads to a divisor of it."
            )
        with torch.device("meta"):
            AutoModelForMaskedLM.from_config(config)
    except (ValueError, TypeError, RuntimeError, KeyError, StrictDataclassError) as error:
        reason = f"no such value {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"These settings do not make a model: {reason}") from error
    return config


def _start(architecture: str) -> Any:
    if architecture in FAMILIES:
        positions = {"max_position_embeddings": 514} if architecture in BEHIND_PADDING else {}
        return AutoConfig.for_model(architecture, **positions)
    folder = local_folder(architecture)
    known = folder.exists() if folder else "/" in architecture  # with a slash, it may be a name of the hub
    if not known:
        raise UserError(
            f"Unknown architecture '{architecture}'.{did_you_mean(architecture, FAMILIES)} Give one of "
            f"{', '.join(FAMILIES)}, or a folder or JSON file with a configuration."
        )
    try:
        config = AutoConfig.from_pretrained(architecture, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise UserError(f"No configuration could be read from '{architecture}': {first_line(error)}") from error
    if config.model_type not in FAMILIES:
        raise unknown(f"architecture (in '{architecture}')", config.model_type, FAMILIES)
    return config


def _sized(config: Any, size: str | None) -> dict[str, Any]:
    """Return the settings of a named size under the names that the architecture has for them."""
    if size is None:
        return {}
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    layers, width = SIZES[size]
    inner = "hidden_dim" if config.model_type == "distilbert" else "intermediate_size"
    values = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        inner: getattr(config, inner) * width // config.hidden_size,
    }
    # Lists with an entry a layer follow from the number of layers again.
    listed = {name: None for name in ("layer_types",) if hasattr(config, name)}
    return {**{config.attribute_map.get(name, name): value for name, value in values.items()}, **listed}


def _read(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    # What every configuration has says nothing about the network, and the tokenizer decides on the ids.
    own = {name for name in config.to_dict() if not name.endswith("_token_id")} - {*PreTrainedConfig().to_dict()}
    known = {*own, *config.attribute_map} - {"vocab_size", "model_type"}
    values = {}
    for name, value in changes.items():
        if name == "vocab_size":
            raise UserError("The tokenizer decides on the vocabulary: use vocab-size, not the setting vocab_size.")
        if name not in known:
            raise unknown(f"setting of {config.model_type}", name, known)
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            parsed = value
        values[config.attribute_map.get(name, name)] = parsed
        if name == "num_hidden_layers" and hasattr(config, "layer_types"):
            values.setdefault("layer_types", None)
    return values


def description(config: Any) -> dict[str, Any]:
    """Return what a configuration says of the network, without what the vocabulary decides."""
    left_out = ("vocab_size", "transformers_version")
    values = config.to_diff_dict().items()
    return {name: value for name, value in values if name not in left_out and not name.endswith("_token_id")}


def fit_vocabulary(config: Any, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the configuration with the size of a tokenizer's vocabulary and the ids of its special tokens.

    Raises:
        UserError: If the model counts positions from the id of the padding, and has none behind it.
    """
    values = {**config.to_dict(), "vocab_size": len(tokenizer)}
    stand_in = {"bos": "cls", "eos": "sep"}
    for role in ("pad", "bos", "eos", "cls", "sep"):
        name = f"{role}_token_id"
        if values.get(name) is not None:
            found = getattr(tokenizer, name, None)
            values[name] = found if found is not None else getattr(tokenizer, f"{stand_in.get(role, role)}_token_id")
    pad, positions = values.get("pad_token_id"), values.get("max_position_embeddings")
    if config.model_type in BEHIND_PADDING and pad is not None and pad + 1 >= positions:
        raise UserError(
            f"The padding of the tokenizer has the id {pad:,}, and {config.model_type} counts its {positions:,} "
            "positions from there: give a tokenizer whose padding has a low id, or another architecture, such as bert."
        )
    return type(config).from_dict(values)


def fresh_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Make a masked language model with random weights: the same for the same seed."""
    with forked_chance():
        torch.manual_seed(seed)
        return AutoModelForMaskedLM.from_config(config)
