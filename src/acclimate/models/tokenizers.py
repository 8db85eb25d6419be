"""Load a tokenizer, and fit it to its model.

Where the two disagree, a saved model computes something else in other programs than it did in training. Such
disagreements are removed here, or reported where only the user can decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.errors import UserError, warn_once
from acclimate.models.checkpoints import UNREADABLE, load_error, local_folder, trusts_remote_code
from acclimate.models.families import first_position

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
        raise UserError(
            f"In the tokenizer of '{path}', model_max_length is {tokenizer.model_max_length!r:.40}, no number."
        )
    tokenizer.split_special_tokens = False  # that of an end task splits them, see read_as_text
    return tokenizer


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, path: str | Path) -> None:
    """Make a tokenizer return and pad what its model reads, and warn, once per model, of what else does not fit.

    Raises:
        UserError: If the tokenizer has tokens that the model has no embedding for.
    """
    embeddings: Any = model.get_input_embeddings()
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


def reads_segments(model: PreTrainedModel) -> bool:
    """Return whether a model distinguishes two segments.

    This is read from its configuration, since a tokenizer may return segment ids for a model without segments, or, if
    it was saved without its class, none for a model that was trained with them.
    """
    return getattr(model.config, "type_vocab_size", 0) > 1


def is_encoder(model: PreTrainedModel) -> bool:
    """Return whether a model is of an architecture with a masked language model."""
    return type(model.config) in MODEL_FOR_MASKED_LM_MAPPING


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
