"""Masked-LM loss that can be compared: the same masks for every model, whatever the batches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.device import to_device
from acclimate.errors import UserError
from acclimate.masking import IGNORE_INDEX, MASK_RATE
from acclimate.models import attach, encode, language_head, load_language_model, longest_text
from acclimate.models.batching import micro_batch_tokens, padding_policy
from acclimate.models.loading import logits_at
from acclimate.modules import virtual_ids


def language_model_loss(
    model: PreTrainedModel | str | Path,
    texts: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 128,
    rate: float = MASK_RATE,
    seed: int = 13,
) -> dict[str, Any]:
    """Measure how well a model fills in masked tokens of held-out text.

    Of the first ``max_length`` tokens of each text, ``rate`` of the ordinary ones (at least one, the count rounded)
    are replaced by the mask token. Which ones depends on the text and the seed alone, so every model with the same
    tokenizer is asked the same questions, and neither batch size nor order nor packing matters. The forward is fp32.

    Args:
        model: A masked language model, or its folder.
        texts: The documents.
        tokenizer: Needed with a model in memory.
        max_length: Tokens of each text that are read, special tokens included, virtual tokens not.
        rate: Share of tokens that are masked.
        seed: Of the masks.

    Returns:
        ``nats``: mean loss over all masked tokens; ``masked``: their number; ``texts``: number of texts;
        ``per_text``: for each text the summed loss, and ``per_text_masked``: over how many tokens.
        ``tokens``: how many tokens were read, special ones aside; ``bytes``: how many bytes of UTF-8 these stand for;
        ``bits_per_byte``: nats * tokens / (bytes * ln 2), which charges every token the mean of the masked ones and
        so does not grow with the length of a vocabulary's tokens. It is a pseudo-measure: each token is guessed
        from both sides with 85 % of the others in view, so it is no code length, and lower than that of a causal
        model. A token that the vocabulary does not know is never masked; it is charged the mean, too.

    Raises:
        UserError: If the model has no trained head or reads no texts of that length, or no text has a token to mask.
    """
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer")
        return _measure(model, tokenizer, texts, max_length, rate, seed)
    loaded = load_language_model(model)
    if loaded.absent_head:
        raise UserError(f"The model '{model}' has no masked-LM head, so it has no masked-LM loss; adapt it first.")
    return _measure(to_device(loaded.model), loaded.tokenizer, texts, max_length, rate, seed)


def _measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    attach(model)
    virtual = virtual_ids(tokenizer)
    found = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length + len(virtual),
        split_special_tokens=True,  # one that stands in a text is text, as in a corpus
        return_special_tokens_mask=True,
        return_offsets_mapping=tokenizer.is_fast,
    )
    encoded = found["input_ids"]
    room = longest_text(model)
    if room is not None and max(map(len, encoded), default=0) > room:
        raise UserError(
            f"The masked-LM loss reads up to {max_length} tokens of a text"
            + (f" and {len(virtual)} virtual ones" if virtual else "")
            + f", more than the {room} positions of this model. Lower max_length, for all models alike."
        )
    special = tokenizer.all_special_ids
    questions = [_choose_masked_positions(np.array(ids), special, virtual, rate, seed) for ids in encoded]
    order = sorted((index for index, item in enumerate(questions) if item is not None), key=lambda i: -len(encoded[i]))
    if not order:
        raise UserError("The text to measure the masked-LM loss on has no token that could be masked.")
    losses, counts = [0.0] * len(encoded), [0] * len(encoded)
    device = next(model.parameters()).device
    grain = padding_policy(model)
    scored = 8 * rate * model.config.vocab_size  # logits and their softmax in fp32, at masked tokens
    budget = micro_batch_tokens(model, scored, times=2)
    training = model.training
    model.eval()
    start = 0
    with torch.no_grad():
        while start < len(order):
            width = grain.padded_width(len(encoded[order[start]]))
            group = order[start : start + max(1, budget // width)]
            start += len(group)
            for index, loss, count in _group_losses(model, tokenizer, encoded, questions, group, width, device):
                losses[index], counts[index] = loss, count
    model.train(training)
    extents = [_count_tokens_and_bytes(tokenizer, texts[i], found, i, max_length + len(virtual)) for i in order]
    nats, tokens, size = sum(losses) / sum(counts), *(sum(column) for column in zip(*extents, strict=True))
    return {
        "nats": nats,
        "bits_per_byte": nats * tokens / (size * math.log(2)),
        "tokens": tokens,
        "bytes": size,
        "masked": sum(counts),
        "texts": len(encoded),
        "per_text": losses,
        "per_text_masked": counts,
    }


def _count_tokens_and_bytes(
    tokenizer: PreTrainedTokenizerBase, text: str, encoded: Any, index: int, max_length: int
) -> tuple[int, int]:
    """Return how many tokens of a text were read, special ones aside, and of how many bytes.

    A text that was not cut counts whole, with white space that no token stands for.
    """
    ids, added = encoded["input_ids"][index], encoded["special_tokens_mask"][index]
    own = [place for place, flag in enumerate(added) if not flag]
    read = text
    if len(ids) >= max_length:  # it may have been cut
        if tokenizer.is_fast:
            offsets = encoded["offset_mapping"][index]
            start, end = offsets[own[0]][0], offsets[own[-1]][1]  # some tokenizers cut the beginning
            read = text[start if text[:start].strip() else 0 : end if text[end:].strip() else len(text)]
        else:
            read = str(tokenizer.decode([ids[place] for place in own]))
    return len(own), len(read.encode("utf-8", "surrogatepass"))


def _choose_masked_positions(
    ids: np.ndarray, special: Sequence[int], virtual: Sequence[int], rate: float, seed: int
) -> np.ndarray | None:
    """Choose positions to mask from the content of the text; None if there is nothing to choose."""
    ordinary = np.flatnonzero(~np.isin(ids, special))
    if not len(ordinary):
        return None
    asked = ids[~np.isin(ids, virtual)]  # a model with a soft prompt is asked the same
    rng = np.random.default_rng([seed, zlib.crc32(asked.astype(np.int64).tobytes())])
    return rng.choice(ordinary, max(1, round(rate * len(ordinary))), replace=False)


def _group_losses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Sequence[Sequence[int]],
    questions: Sequence[np.ndarray | None],
    group: Sequence[int],
    width: int,
    device: torch.device,
) -> list[tuple[int, float, int]]:
    """Return (index, summed loss, count) of each text of a group that is read in one forward."""
    padding = tokenizer.pad_token_id
    ids = np.full((len(group), width), padding if isinstance(padding, int) else 0, dtype=np.int64)
    labels = np.full((len(group), width), IGNORE_INDEX, dtype=np.int64)
    text = np.full((len(group), width), -1, dtype=np.int64)
    for row, index in enumerate(group):
        tokens, places = np.array(encoded[index]), questions[index]
        ids[row, : len(tokens)], text[row, : len(tokens)] = tokens, row
        labels[row, places] = ids[row, places]
        ids[row, places] = tokenizer.mask_token_id
    targets = torch.from_numpy(labels).to(device)
    hidden = encode(model, torch.from_numpy(ids).to(device), torch.from_numpy(text).to(device))
    chosen = targets >= 0
    logits = logits_at(language_head(model), hidden, chosen)
    loss = nn.functional.cross_entropy(logits.float(), targets[chosen], reduction="none")
    counts = chosen.sum(1).tolist()
    return [
        (index, float(part.double().sum()), count)
        for index, part, count in zip(group, loss.split(counts), counts, strict=True)
    ]
