"""Virtual tokens: learned vectors that are appended to every text, for soft prompts and distillation tokens.

They are entries of the vocabulary. The tokenizer appends them to every text and pair, and the embedding table contains
their vectors, so a model with a learned prompt is an ordinary model folder.
"""

from __future__ import annotations

from typing import Literal

import torch
from tokenizers import processors
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acclimate.base.errors import UserError
from acclimate.models.extensions import check_can_grow
from acclimate.models.loading import virtual_ids

VIRTUAL_TOKEN_BIAS = -1e4
"""Bias of the language-model head for virtual tokens, which should never be predicted."""

SPECIAL_TOKEN_ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "bos_token", "eos_token")


def add_virtual_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    start: Literal["vocabulary", "uniform"] = "vocabulary",
    seed: int = 0,
) -> PreTrainedTokenizerBase:
    """Add virtual tokens to a model, and return a tokenizer that appends them to every text.

    Args:
        model: A masked language model; its embedding table grows.
        tokenizer: Its tokenizer, which is not changed.
        count: Number of tokens.
        start: Initial vectors: vectors of ordinary tokens sampled without replacement (which Lester et al., 2021,
            found to be better), or uniform in -0.5 to 0.5.
        seed: Random seed.

    Returns:
        A tokenizer that appends them after the final special token. Truncation leaves room for them, as for any
        special token.

    Raises:
        UserError: If the tokenizer is not a fast one or already has virtual tokens, or the table cannot grow.
    """
    if virtual_ids(tokenizer):
        raise UserError("The model already has virtual tokens; start from a model without.")
    check_can_grow(model)
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
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if start == "vocabulary":
            drawn = torch.randperm(len(ordinary), generator=generator)[:count]
            drawn = drawn.repeat(-(-count // len(drawn)))[:count]
            table[ids] = table[torch.tensor(ordinary)[drawn]]
        else:
            table[ids] = (torch.rand(count, table.shape[1], generator=generator) - 0.5).to(table)
        bias = getattr(model.get_output_embeddings(), "bias", None)
        if isinstance(bias, nn.Parameter):
            bias[ids] = VIRTUAL_TOKEN_BIAS
    return longer


def _make_appending_tokenizer(tokenizer: PreTrainedTokenizerBase, names: list[str]) -> PreTrainedTokenizerBase:
    """Make a tokenizer with the same tokens whose template appends ``names``.

    Architecture-specific tokenizer classes rebuild their template when they are loaded. The general class keeps it.
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
    """Return the templates of a single text and of a pair, inferred from encodings: names and segment ids."""
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
            raise UserError(
                f"The special tokens that {type(tokenizer).__name__} adds cannot be inferred; use another model."
            )
        result.append(parts)
    return result[0], result[1]
