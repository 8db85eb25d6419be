"""Load a language model and its tokenizer, and initialize a language-model head that the checkpoint lacks.

Where model and tokenizer disagree, a saved model computes something else in other programs than it did in training.
Such disagreements are removed here, or reported where only the user can decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.base.device import default_device, enable_fast_fp32_matmul
from acclimate.base.errors import UserError, warn_once
from acclimate.base.files import local_folder
from acclimate.base.progress import silence_transformers
from acclimate.models.checkpoints import (
    UNREADABLE,
    check_folder,
    from_pretrained,
    load_config,
    load_error,
    trusts_remote_code,
)
from acclimate.models.families import Family, family_of, first_position, language_head, reads_segments
from acclimate.models.kinds import ModelKind, class_names, find_kind, kind_of, kind_of_checkpoint

CAPITALS = re.compile("[A-ZΑ-ΩА-Я]\\w|\\w[A-ZΑ-ΩА-Я]")
"""Pattern of a token with a capital letter and another letter. Other scripts are left out, because byte-level
vocabularies write bytes as accented Latin letters."""
MAX_IMPOSSIBLE_SHARE = 0.01
"""A warning is logged if more than this share of a vocabulary can never occur, because text is lower-cased."""


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, which then reads special tokens in a text as special tokens.

    Raises:
        UserError: If there is no tokenizer, or it has no vocabulary.
    """
    folder = local_folder(path)
    if folder and not folder.exists():
        raise UserError(f"No tokenizer could be loaded from '{path}': there is no such folder.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trusts_remote_code())
    except UNREADABLE as error:
        raise UserError(f"No tokenizer could be loaded from '{path}': {load_error(error, path)}") from error
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up by transformers if files are missing
        raise UserError(f"The tokenizer in '{path}' has no vocabulary; add the vocabulary files to the folder.")
    if not isinstance(tokenizer.model_max_length, int | float):
        length = f"{tokenizer.model_max_length!r:.40}"
        raise UserError(f"In the tokenizer of '{path}', model_max_length is {length}, which is no number.")
    tokenizer.split_special_tokens = False  # the tokenizer of an end task splits them, see read_as_text
    return tokenizer


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, path: str | Path) -> None:
    """Make a tokenizer return and pad what its model reads, and warn, once per model, of what else does not fit.

    Raises:
        UserError: If the tokenizer has tokens that the model has no embedding for, or the model counts positions from
            a padding id and has none.
    """
    if getattr(getattr(model.base_model, "embeddings", None), "padding_idx", 0) is None:
        raise UserError(
            f"In config.json of '{path}', pad_token_id is missing, from which a {model.config.model_type} model "
            "counts its positions. Set it to the id with which the model was trained (1 in RoBERTa)."
        )
    embeddings: Any = model.get_input_embeddings()
    if getattr(embeddings, "weight", None) is None:
        raise UserError(f"The model in '{path}' has no word embeddings; {type(model).__name__} is not supported.")
    vocabulary, rows = tokenizer.get_vocab(), embeddings.weight.shape[0]
    size = max(len(tokenizer), 1 + max(vocabulary.values(), default=-1))
    if size > rows:
        raise UserError(f"The tokenizer of '{path}' has {size} tokens, its model only {rows}.")
    for warning in _disagreements(tokenizer, model, vocabulary):
        warn_once(f"The tokenizer of '{path}' {warning}")
    if is_encoder(model):
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "right"
    inputs = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    inputs += ["token_type_ids"] * reads_segments(model)
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = inputs


def is_encoder(model: PreTrainedModel) -> bool:
    """Return whether a model reads in both directions: by its kind, or its architecture if it has another head."""
    kind, known = (
        find_kind(type(model).__name__),
        (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
    )
    return kind.uses_masking if kind else any(type(model.config) in mapping for mapping in known)


def _disagreements(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, vocabulary: dict[str, int]
) -> Iterator[str]:
    if is_encoder(model) and tokenizer.padding_side == "left":
        yield (
            f"pads on the left, where a {model.config.model_type} model expects the first token of a text. Padding is "
            "on the right here and in what is saved."
        )
    padding, expected = tokenizer.pad_token_id, first_position(model) - 1
    if expected >= 0 and padding not in (None, expected):
        yield (
            f"pads with the id {padding}, but pad_token_id in config.json is {expected}: the model gives the token "
            f"{tokenizer.convert_ids_to_tokens(expected)!r}, which has that id, no position. Correct the one that is "
            "wrong."
        )
    impossible = sum(1 for token in vocabulary.keys() - tokenizer.get_added_vocab() if CAPITALS.search(token))
    if impossible > MAX_IMPOSSIBLE_SHARE * len(vocabulary) and _lowercases(tokenizer):
        yield (
            f"lower-cases text, so {impossible:,} tokens with capital letters can never occur. If the model is cased, "
            'add "do_lower_case": false to tokenizer_config.json.'
        )
    ends = {tokenizer.cls_token_id, tokenizer.sep_token_id} - {None}
    if ends and not ends & set(tokenizer("a")["input_ids"]):
        names = " and ".join(filter(None, (tokenizer.cls_token, tokenizer.sep_token)))
        yield (
            f"puts no special tokens around a text, although it has {names}, which most models were trained with. Add "
            "a post-processor to tokenizer.json."
        )


def _lowercases(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return bool(getattr(tokenizer, "do_lower_case", False))
    return backend.normalizer is not None and "A" not in backend.normalizer.normalize_str("A")


_VIRTUAL_TOKEN_NAME = re.compile(r"\[VIRTUAL\d+\]")
TASK_HEAD_PREFIXES = ("classifier", "qa", "seq_classif", "summary")
"""Prefixes of the configuration entries that hold dropout probabilities of end-task heads."""


def head_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Return the parameters of the head by name, without the decoder weight if it is tied to the embeddings."""
    inside = {id(parameter) for parameter in model.base_model.parameters()}
    if model.base_model is model:  # the stacks of T5 are next to its head
        head, words = model.get_output_embeddings(), model.get_input_embeddings()
        inside -= {id(weight) for weight in head.parameters()} - {id(weight) for weight in words.parameters()}
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
        adapter: The adapter that trains instead of the weights, a :class:`acclimate.models.lora.LowRankAdapter`.
        pooling: How ``sentence-transformers`` pools its hidden states, if it is to become a sentence encoder.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    absent_head: bool = False
    adapter: Any = None
    pooling: str | None = None

    @property
    def kind(self) -> ModelKind:
        """Kind of the language model."""
        return kind_of(self.model)

    @property
    def family(self) -> Family:
        """The row of its architecture in the table of families."""
        return family_of(self.model.config)


def load_language_model(path: str | Path, dropout: float | None = None, quantize: str | None = None) -> LanguageModel:
    """Load a language model in fp32, whatever the type of its weights, and its tokenizer.

    Args:
        path: A model folder, or a name on the Hub.
        dropout: Probability of every dropout in the encoder, instead of the configured ones. The configuration
            keeps its values, so that a saved model has the original ones. In most decoders it applies to the attention
            weights alone, which is the noise that contrasts of two dropout masks use there (LLM2Vec, BehnamGhader et
            al., COLM 2024). An architecture without dropout gets it on its embeddings.
        quantize: ``"4bit"`` keeps the weights of linear layers outside the head in four bits (NF4 with double
            quantization; Dettmers et al., NeurIPS 2023). None for none.

    Returns:
        The model in evaluation mode.

    Raises:
        UserError: If there is no model, it cannot be a language model of a known kind, its tokenizer does not fit, or
            weights of its encoder are missing or have the wrong shape.
    """
    enable_fast_fp32_matmul()  # before any product, so that results do not depend on what the process did earlier
    check_folder(path)
    config = load_config(path)
    check_architecture(config, path)
    kind = kind_of_checkpoint(config.architectures, path)
    if kind.uses_masking and not kind.pairs and _is_causal_only(config):
        name = next(iter(class_names(config.architectures)), "model")
        raise UserError(
            f"'{path}' is a {name} without the language-model head that a causal model needs; give the checkpoint of "
            "the language model itself, or correct 'architectures' in its config.json."
        )
    try:
        with silence_transformers():
            before = {} if dropout is None else _set_dropout(config, dropout)
            model, info = from_pretrained(
                getattr(transformers, kind.auto_class),
                path,
                config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # checked below
                **({} if quantize is None else _quantization()),
            )
            for name, value in before.items():
                setattr(model.config, name, value)
            if dropout and not before:
                _drop_embeddings(model, dropout)
    except UNREADABLE as error:
        raise UserError(f"No language model could be loaded from '{path}': {load_error(error, path)}") from error
    missing = check_encoder_weights(model, info, path)
    tokenizer = load_tokenizer(path)
    fit_tokenizer(tokenizer, model, path)
    if kind.uses_masking and not kind.pairs and tokenizer.mask_token_id is None:
        raise UserError(f"The tokenizer of '{path}' has no mask token, so the model cannot be trained by masking.")
    language_head(model)
    absent = bool(missing & set(head_parameters(model)))
    if absent and not kind.trains_missing_head:
        raise UserError(f"The model in '{path}' has no language-model head; use a checkpoint with one.")
    if quantize is not None:
        _prepare_quantized(model, absent, path)
    if absent:
        initialize_head(model, missing)
    model.eval()
    return LanguageModel(model, tokenizer, absent)


def read_kind(path: str | Path) -> ModelKind:
    """Return the kind of a language model from its configuration alone.

    Raises:
        UserError: If there is no model, or it is not a language model of a known kind.
    """
    config = load_config(path)
    check_architecture(config, path)
    return kind_of_checkpoint(config.architectures, path)


def check_architecture(config: PretrainedConfig, path: str | Path, language: bool = True) -> None:
    """Refuse models whose loss is of another kind, by name.

    Args:
        config: The configuration of the model.
        path: The model, for messages.
        language: Whether it has to be a language model.

    Raises:
        UserError: If the model is a multimodal one, or an encoder-decoder without a language-model head.
    """
    name = next(iter(class_names(config.architectures)), type(config).__name__.replace("Config", "Model"))
    kind = find_kind(name)
    paired, reads_both = kind is not None and kind.pairs, getattr(config, "is_encoder_decoder", False)
    modalities = [modality for modality in ("vision", "audio") if hasattr(config, f"{modality}_config")]
    if paired and (modalities or not reads_both or type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING):
        what = f" ({' and '.join(modalities)})" if modalities else ""
        raise UserError(
            f"'{path}' is a {name}, a multimodal model{what}; acclimate adapts models of text: masked ones, causal "
            "ones and encoder-decoders. Save its text model by itself and adapt that."
        )
    if reads_both and kind is None and language:
        raise UserError(
            f"'{path}' is a {name}, an encoder-decoder without the language-model head that its decoder needs; give "
            "the checkpoint of the language model itself (…ForConditionalGeneration)."
        )


def _is_causal_only(config: PretrainedConfig) -> bool:
    """Return whether ``transformers`` has a causal language model of an architecture, but no masked one."""
    masked, causal = transformers.MODEL_FOR_MASKED_LM_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return type(config) in causal and type(config) not in masked


def _quantization() -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for weights in four bits, straight onto the device of training."""
    device = default_device()
    computing = torch.float32 if device.type == "cpu" else torch.bfloat16
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=computing,
    )
    return {"quantization_config": config, "device_map": {"": str(device)}}


def _prepare_quantized(model: PreTrainedModel, absent_head: bool, path: str | Path) -> None:
    """Prepare a model with weights in four bits for the training of adapters."""
    if absent_head:
        raise UserError(
            f"The model in '{path}' has no trained language-model head; train it before the weights are quantized, "
            "with --method none."
        )
    model._hf_peft_config_loaded = True  # ``Trainer`` refuses a quantized model without adapters, which come later
    layers: list[Any] = list(model.modules())
    for module in layers:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # Otherwise a forward pass without gradient repacks the weights in place, and training cannot use them.
            module.support_avx512bf16_for_cpu = False


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
    head = head_parameters(model) if model.base_model is model else None
    prefix = f"{model.base_model_prefix}." if head is None else ""

    def inside(name: str) -> bool:
        return name.startswith(prefix) and ".pooler." not in name and name not in (head or ())

    for name, stored, expected in sorted(info["mismatched_keys"]):
        if inside(name):
            raise UserError(
                f"The weights in '{path}' do not fit its config.json: {name} has the shape {tuple(stored)} instead of "
                f"{tuple(expected)}."
            )
    fresh = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    lost = sorted(filter(inside, fresh))
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


def _set_dropout(config: PretrainedConfig, dropout: float) -> dict[str, float]:
    """Set the dropout probabilities of a configuration; return the previous ones by name."""
    if not 0 <= dropout < 1:
        raise UserError(f"The dropout must be from 0 to below 1, not {dropout:g}.")
    before = {name: getattr(config, name) for name in dropout_names(config)}
    for name in before:
        setattr(config, name, float(dropout))
    return before


def _drop_embeddings(model: PreTrainedModel, dropout: float) -> None:
    """Apply dropout to the word embeddings of an architecture that has none (LFM2), as GPT-2 does."""
    embeddings: Any = model.get_input_embeddings()
    embeddings.add_module("acclimate_dropout", nn.Dropout(dropout))
    embeddings.register_forward_hook(lambda module, inputs, output: module.acclimate_dropout(output))


def virtual_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the virtual tokens that the tokenizer appends to every text, in order."""
    added = tokenizer.get_added_vocab()
    return sorted(index for name, index in added.items() if _VIRTUAL_TOKEN_NAME.fullmatch(name))


def dropout_names(config: PretrainedConfig) -> list[str]:
    """Return the entries of a configuration that hold a dropout probability of the encoder."""
    return [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or "pdrop" in name)
        and not name.startswith(TASK_HEAD_PREFIXES)
        and isinstance(value, float | int)
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


def check_dropout_masks(model: PreTrainedModel) -> None:
    """Check that a model has dropout, for methods that compare two dropout masks of each text.

    Raises:
        UserError: If it has none: the views would be equal, and a contrast between them would learn nothing.
    """
    if not any(dropout_rates(model)):
        raise UserError(
            "This method compares two dropout masks of each text, but the model has no dropout. Set one for the "
            "adaptation with --dropout 0.1 (in Python dropout=0.1)."
        )
