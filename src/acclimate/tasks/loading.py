"""Loading any checkpoint with the head of an end task."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import enable_fast_fp32_matmul
from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import RECORD_FILE
from acclimate.base.progress import silence_transformers
from acclimate.data.tokenizing import read_as_text
from acclimate.models.attention import prepare_for_device
from acclimate.models.checkpoints import UNREADABLE, check_folder, from_pretrained, load_config, load_error
from acclimate.models.families import longest_text
from acclimate.models.loading import check_encoder_weights, fit_tokenizer, is_encoder, load_tokenizer, virtual_ids
from acclimate.tasks.interfaces import LabelledTask

MIN_LENGTH = 4
"""Minimum tokens per example: fewer leave no space for text between the special tokens."""


def load_with_head(
    auto: Any, path: str | Path, settings: dict[str, Any], max_length: int, device: torch.device, what: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, int]:
    """Load a checkpoint as a model of an end task in fp32, on the CPU.

    Missing weights are initialized from torch's global generator, so seed that first. These are the head and, in a
    checkpoint of a masked language model whose task head reads a pooler (BERT), that pooler, which starts near the
    identity. A checkpoint that already has such a head of the same size keeps it, with its classes in the order of
    ``settings["id2label"]``; for classes with other names, its last layer is initialized, with a warning.

    Args:
        auto: An auto class such as ``AutoModelForSequenceClassification``.
        path: A model folder or a name on the Hugging Face Hub.
        settings: Entries of the configuration, ``num_labels`` among them.
        max_length: Maximum tokens per example; reduced to what the model can read.
        device: Where the model will run, which determines how attention is computed.
        what: Kind of model, for messages.

    Returns:
        The model, its tokenizer, and the tokens that it reads per example, virtual tokens included. The tokenizer
        reads special tokens in a text as text (:func:`acclimate.data.tokenizing.read_as_text`).

    Raises:
        UserError: If the model cannot be loaded, its encoder weights are incomplete, its tokenizer has no padding and
            no end token or too many tokens, or ``max_length`` leaves no space for text.
    """
    enable_fast_fp32_matmul()  # before any computation, so that results do not depend on earlier ones
    check_folder(path)
    config, known = load_config(path, **settings), load_config(path).id2label or {}
    tokenizer = load_tokenizer(path)
    try:
        with silence_transformers():
            model, info = from_pretrained(
                auto,
                path,
                config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # for the head of another task; the encoder is checked below
                **_renamed_body(auto, config),
            )
    except UNREADABLE as error:
        raise UserError(f"'{path}' cannot be loaded as a {what}: {load_error(error, path)}") from error
    prepare_for_device(model, device)
    fresh = check_encoder_weights(model, info, path)
    _initialize_pooler(model, fresh)
    if "id2label" in settings:
        _match_classes(model, known, fresh, path)
    if tokenizer.pad_token_id is None:  # decoders
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer of '{path}' has neither a padding nor an end token; add one of them.")
    fit_tokenizer(tokenizer, model, path)
    # Decoders count positions from the start of a row, padding included, so padding on the left would shift the text.
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "right"
    if model.config.pad_token_id is None or not is_encoder(model):  # decoders find the last token of a text by it
        model.config.pad_token_id = tokenizer.pad_token_id
    tokenizer = read_as_text(tokenizer)
    wanted = max_length + len(virtual_ids(tokenizer))
    # In the folder of a fine-tuned model the tokenizer has the length of that training, not the limit of the model.
    limit = math.inf if (Path(path) / RECORD_FILE).is_file() else tokenizer.model_max_length
    length = int(min(wanted, longest_text(model) or limit, limit))
    if length < MIN_LENGTH:
        raise UserError(f"max_length={max_length} leaves no space for text; give at least {MIN_LENGTH} tokens.")
    if length < wanted:
        warn_once(f"'{path}' reads at most {length} tokens, so texts are truncated to that instead of {wanted}.")
    return model, tokenizer, length


def _renamed_body(auto: Any, config: PreTrainedConfig) -> dict[str, dict[str, str]]:
    """Return how weights are renamed where a model with a head calls its body otherwise, as Llama for QA does."""
    classes = [made._model_mapping.get(type(config), None) for made in (AutoModel, auto)]
    body, inside = (getattr(found, "base_model_prefix", "") for found in classes)
    return {"key_mapping": {rf"^{body}\.": f"{inside}."}} if body and inside and body != inside else {}


def is_classifier_of(path: str | Path, task: LabelledTask) -> bool:
    """Return whether a checkpoint already is a classifier of a task's labels, in their order.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        task: The task.

    Raises:
        UserError: If there is no model.
    """
    config = find_head(path, "ForSequenceClassification", task.labels)
    several = task.scoring().name == "multi_label"
    return config is not None and (config.problem_type == "multi_label_classification") == several


def find_head(path: str | Path, architecture: str, names: Sequence[str]) -> PreTrainedConfig | None:
    """Return the configuration of a checkpoint if it has a head with classes of these names in this order, else None.

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        architecture: End of the name of the architecture.
        names: Names of the classes.

    Raises:
        UserError: If there is no model.
    """
    config = load_config(path)
    known = getattr(config, "id2label", None) or {}
    has_head = any(name.endswith(architecture) for name in config.architectures or [])
    return config if has_head and [known.get(place) for place in range(len(known))] == list(names) else None


def _match_classes(model: PreTrainedModel, known: dict[int, str], fresh: Collection[str], path: str | Path) -> None:
    """Reorder the classes of a head that was loaded, or initialize its last layer if it has other classes.

    Args:
        model: The model, whose configuration names the classes of the task.
        known: Names of the classes of the checkpoint.
        fresh: Names of the weights that are new.
        path: Where the model was loaded from.
    """
    wanted = [str(name) for name in (model.config.id2label or {}).values()]
    place, last = last_layer(model)
    if last is None or f"{place}.weight" in fresh:
        return
    names = [str(known.get(number)) for number in range(len(wanted))]
    if names == wanted:
        return
    if names == [f"LABEL_{number}" for number in range(len(wanted))]:  # what transformers writes for unnamed classes
        if wanted != [str(number) for number in range(len(wanted))]:
            warn_once(
                f"The classes of '{path}' have no names, so they are taken to be, in order: {', '.join(wanted)}. If "
                "that is wrong, correct id2label in its config.json."
            )
        return
    with torch.no_grad():
        if (order := _order_of(names, wanted)) is not None:
            last.weight.copy_(last.weight[order])
            if last.bias is not None:
                last.bias.copy_(last.bias[order])
            return
        warn_once(
            f"The classes of '{path}' ({', '.join(names)}) are not those of the task ({', '.join(wanted)}), so the "
            "last layer of its head is trained from new weights."
        )
        last.weight.normal_(std=getattr(model.config, "initializer_range", 0.02))
        if last.bias is not None:
            last.bias.zero_()


def last_layer(model: PreTrainedModel) -> tuple[str, Any]:
    """Return the name and the layer that gives the logits of a head; the layer is None if there is no such layer."""
    inside = {id(module) for module in model.base_model.modules()}
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == model.config.num_labels and id(layer) not in inside
    ]
    return layers[-1] if layers else ("", None)


def _order_of(names: list[str], wanted: list[str]) -> list[int] | None:
    """Return the index in ``names`` of each wanted name; None if the names differ in more than order and case."""
    for key in (str, str.casefold):
        places = {key(name): number for number, name in enumerate(names)}
        if len(places) == len(names) and places.keys() == {key(name) for name in wanted}:
            return [places[key(name)] for name in wanted]
    return None


def _initialize_pooler(model: PreTrainedModel, fresh: Collection[str]) -> None:
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
