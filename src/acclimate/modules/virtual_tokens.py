"""Learned vectors that every text is read with: soft prompts and distillation tokens, as entries of the vocabulary.

A vector that is an entry of the vocabulary needs no code of ours to be read: the tokenizer appends its token to every
text and every pair, and the embedding table gives its vector. So a model with a learned prompt is an ordinary folder.
"""

from __future__ import annotations

import re
from typing import Literal

import torch
from tokenizers import processors
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acclimate.errors import UserError

VIRTUAL_TOKEN_BIAS = -1e4
"""Bias of the language head on virtual tokens: no model should predict them."""

_VIRTUAL_TOKEN_NAME = re.compile(r"\[VIRTUAL\d+\]")
SPECIAL_TOKEN_ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "bos_token", "eos_token")


def virtual_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the virtual tokens that the tokenizer appends to every text, in order; mostly none."""
    added = tokenizer.get_added_vocab()
    return sorted(index for name, index in added.items() if _VIRTUAL_TOKEN_NAME.fullmatch(name))


def add_virtual_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    start: Literal["vocabulary", "uniform"] = "vocabulary",
    seed: int = 0,
) -> PreTrainedTokenizerBase:
    """Append ``count`` virtual tokens to every text that the tokenizer returned here encodes.

    Args:
        model: A masked language model; its embedding table grows.
        tokenizer: Its tokenizer, which is left as it is.
        count: How many tokens.
        start: Their first vectors: those of ordinary tokens drawn without replacement (Lester et al., 2021, found
            this better), or uniform in -0.5 to 0.5.
        seed: Of the draw.

    Returns:
        A tokenizer that appends them at the end, behind the closing special token. When it truncates, it makes room
        for them as for any special token.

    Raises:
        UserError: If the tokenizer is not a fast one, or has virtual tokens already.
    """
    if virtual_ids(tokenizer):
        raise UserError("The model has virtual tokens already; start from one without.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; virtual tokens need one.")
    names = [f"[VIRTUAL{place}]" for place in range(count)]
    special = set(tokenizer.all_special_ids)
    ordinary = [index for index in range(len(tokenizer)) if index not in special]
    longer = _make_appending_tokenizer(tokenizer, names)
    table: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    if len(longer) > len(table):
        model.resize_token_embeddings(len(longer), mean_resizing=False)
        table = model.get_input_embeddings().weight  # type: ignore[assignment]
    ids = virtual_ids(longer)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if start == "vocabulary":
            drawn = torch.randperm(len(ordinary), generator=chance)[:count]
            drawn = drawn.repeat(-(-count // len(drawn)))[:count]
            table[ids] = table[torch.tensor(ordinary)[drawn]]
        else:
            table[ids] = (torch.rand(count, table.shape[1], generator=chance) - 0.5).to(table)
        bias = getattr(model.get_output_embeddings(), "bias", None)
        if isinstance(bias, nn.Parameter):
            bias[ids] = VIRTUAL_TOKEN_BIAS
    return longer


def _make_appending_tokenizer(tokenizer: PreTrainedTokenizerBase, names: list[str]) -> PreTrainedTokenizerBase:
    """Make a tokenizer with the same tokens and a template of its own.

    Tokenizers of named classes build their template anew when they are loaded, so that ours would be lost: the
    general class keeps it.
    """
    template = _read_template(tokenizer)
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    roles = {role: value for role in SPECIAL_TOKEN_ROLES if (value := getattr(tokenizer, role, None)) is not None}
    longer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        clean_up_tokenization_spaces=False,
        model_input_names=list(tokenizer.model_input_names),
        **roles,
    )
    longer.add_special_tokens({"additional_special_tokens": names})
    backend = longer.backend_tokenizer
    single, pair = (parts + [(name, parts[-1][1]) for name in names] for parts in template)
    special = {name for name, _ in [*single, *pair] if not name.startswith("$")}
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(f"{name}:{segment}" for name, segment in single),
        pair=" ".join(f"{name}:{segment}" for name, segment in pair),
        special_tokens=[(name, backend.token_to_id(name)) for name in sorted(special)],
    )
    return longer


def _read_template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Read off an encoding what the tokenizer puts around a text and a pair: names and segments."""
    specials = set(tokenizer.all_special_ids)
    result = []
    for texts, letters in ((("a",), "A"), (("a", "a"), "AB")):
        encoded = tokenizer(*texts, return_token_type_ids=True)
        parts: list[tuple[str, int]] = []
        remaining = list(letters)
        for index, segment in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True):
            if index in specials and index != tokenizer.unk_token_id:
                parts.append((str(tokenizer.convert_ids_to_tokens(index)), segment))
            elif not parts or not parts[-1][0].startswith("$"):
                parts.append((f"${remaining.pop(0)}", segment))
        if remaining:
            raise UserError(f"What {type(tokenizer).__name__} puts around a text cannot be told; use another model.")
        result.append(parts)
    return result[0], result[1]
