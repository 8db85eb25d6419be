"""Held-out loss of language models, comparable between models: batching does not affect which tokens are predicted."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.corpus.tokenizing import read_as_text
from acclimate.device import to_device
from acclimate.errors import UserError
from acclimate.masking import IGNORE_INDEX, MASK_RATE
from acclimate.models import ModelKind, attach, encode, kind_of, language_head, load_language_model, longest_text
from acclimate.models.batching import chosen_positions, logit_rows, micro_batch_tokens, padding_policy
from acclimate.modules import virtual_ids
from acclimate.objectives.vocabulary import cross_entropy, map_logits


class _Example(NamedTuple):
    """The input ids of a text and the tokens to predict, -100 elsewhere; both (tokens,)."""

    ids: np.ndarray
    labels: np.ndarray


def language_model_loss(
    model: PreTrainedModel | str | Path,
    texts: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 128,
    rate: float = MASK_RATE,
    seed: int = 13,
) -> dict[str, Any]:
    """Measure how well a language model predicts tokens of held-out text.

    The first ``max_length`` tokens of each text are read. For a masked model, ``rate`` of the ordinary ones (at least
    one, rounded) are replaced by the mask token. Which ones depends on the text and the seed alone, so that all models
    with the same tokenizer predict the same tokens, and neither batch size nor order matters. A causal model predicts
    each next token. The forward pass is in fp32.

    Args:
        model: A language model, or its folder or Hub name.
        texts: The documents.
        tokenizer: The tokenizer of a model in memory.
        max_length: Maximum tokens per text, including special tokens but not virtual ones.
        rate: Share of tokens that are masked.
        seed: Random seed of the masks.

    Returns:
        ``kind``: name of the kind of the model; ``nats``: mean loss over all predicted tokens;
        ``masked``: their number; ``texts``: number of texts;
        ``per_text``: summed loss of each text, and ``per_text_masked``: its predicted tokens;
        ``tokens``: tokens read, without special ones; ``bytes``: UTF-8 bytes of the text that they cover;
        ``bits_per_byte``: nats * tokens / (bytes * ln 2), which does not depend on how long the tokens of a vocabulary
        are. For a masked model it is a pseudo-measure: each token is predicted from both sides with, by default, 85 %
        of the others visible, so it is not a code length, and it is lower than that of a causal model. Tokens that are
        not predicted, such as unknown ones, count with the mean loss.

    Raises:
        UserError: If the model has no trained head or cannot read texts of that length, or no text has a token to
            predict.
        ValueError: If a model in memory comes without a tokenizer.
    """
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer")
        return _measure(model, tokenizer, texts, max_length, rate, seed)
    loaded = load_language_model(model)
    if loaded.absent_head:
        raise UserError(
            f"The model '{model}' has no language-model head, so it has no {loaded.kind.loss_name}; adapt it first."
        )
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
    kind = kind_of(model)
    virtual = virtual_ids(tokenizer)
    encoded = read_as_text(tokenizer)(
        list(texts),
        truncation=True,
        max_length=max_length + len(virtual),
        return_special_tokens_mask=True,
        return_offsets_mapping=tokenizer.is_fast,
    )
    rows: list[list[int]] = encoded["input_ids"]
    available = longest_text(model)
    if available is not None and max(map(len, rows), default=0) > available:
        raise UserError(
            f"max_length={max_length}"
            + (f" with {len(virtual)} virtual tokens" if virtual else "")
            + f" is more than the {available} positions of this model. Lower it for all models whose {kind.loss_name} "
            "you compare."
        )
    made = (_make_example(kind, tokenizer, np.array(row), virtual, rate, seed) for row in rows)
    examples = {index: example for index, example in enumerate(made) if example is not None}
    order = sorted(examples, key=lambda index: -len(rows[index]))
    if not order:
        raise UserError(f"The text to measure the {kind.loss_name} on has no token to predict.")
    losses, counts = [0.0] * len(rows), [0] * len(rows)
    policy = padding_policy(model)
    budget = micro_batch_tokens(model, times=2)
    training = model.training
    model.eval()
    start = 0
    with torch.no_grad():
        while start < len(order):
            width = policy.padded_width(len(rows[order[start]]))
            group = order[start : start + max(1, budget // width)]
            start += len(group)
            found = _group_losses(model, tokenizer, [examples[index] for index in group], width)
            for index, (loss, count) in zip(group, found, strict=True):
                losses[index], counts[index] = loss, count
    model.train(training)
    extents = [_count_tokens_and_bytes(tokenizer, texts[i], encoded, i, max_length + len(virtual)) for i in order]
    nats, tokens, size = sum(losses) / sum(counts), *(sum(column) for column in zip(*extents, strict=True))
    return {
        "kind": kind.name,
        "nats": nats,
        "bits_per_byte": nats * tokens / (size * math.log(2)),
        "tokens": tokens,
        "bytes": size,
        "masked": sum(counts),
        "texts": len(rows),
        "per_text": losses,
        "per_text_masked": counts,
    }


def _count_tokens_and_bytes(
    tokenizer: PreTrainedTokenizerBase, text: str, encoded: Any, index: int, max_length: int
) -> tuple[int, int]:
    """Return how many tokens of a text were read, without special ones, and how many bytes they cover.

    A text that was not truncated counts whole, including whitespace that no token covers.
    """
    ids, added = encoded["input_ids"][index], encoded["special_tokens_mask"][index]
    own = [place for place, flag in enumerate(added) if not flag]
    read = text
    if len(ids) >= max_length:  # it may have been truncated
        if tokenizer.is_fast:
            offsets = encoded["offset_mapping"][index]
            start, end = offsets[own[0]][0], offsets[own[-1]][1]  # some tokenizers truncate the beginning
            read = text[start if text[:start].strip() else 0 : end if text[end:].strip() else len(text)]
        else:
            read = str(tokenizer.decode([ids[place] for place in own]))
    return len(own), len(read.encode("utf-8", "surrogatepass"))


def _make_example(
    kind: ModelKind,
    tokenizer: PreTrainedTokenizerBase,
    ids: np.ndarray,
    virtual: Sequence[int],
    rate: float,
    seed: int,
) -> _Example | None:
    """Return the input ids of a text and its tokens to predict; None if there is nothing to predict."""
    if kind.targets is not None:
        labels = kind.targets(ids[None], np.zeros_like(ids)[None])[0]
        return _Example(ids, labels) if (labels != IGNORE_INDEX).any() else None
    places = _choose_masked_positions(ids, tokenizer.all_special_ids, virtual, rate, seed)
    if places is None:
        return None
    masked, labels = ids.copy(), np.full_like(ids, IGNORE_INDEX)
    masked[places], labels[places] = tokenizer.mask_token_id, ids[places]
    return _Example(masked, labels)


def _choose_masked_positions(
    ids: np.ndarray, special: Sequence[int], virtual: Sequence[int], rate: float, seed: int
) -> np.ndarray | None:
    """Choose positions to mask from the content of a text and a seed; None if there is nothing to choose from."""
    ordinary = np.flatnonzero(~np.isin(ids, special))
    if not len(ordinary):
        return None
    content = ids[~np.isin(ids, virtual)]  # the choice is the same with a soft prompt
    rng = np.random.default_rng([seed, zlib.crc32(content.astype(np.int64).tobytes())])
    return rng.choice(ordinary, max(1, round(rate * len(ordinary))), replace=False)


def _group_losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[_Example], width: int
) -> list[tuple[float, int]]:
    """Return the summed loss and the number of predicted tokens of each text, computed in one forward pass."""
    padding = tokenizer.pad_token_id
    shape = (len(examples), width)
    ids = np.full(shape, padding if isinstance(padding, int) else 0, dtype=np.int64)
    labels, text = np.full(shape, IGNORE_INDEX, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    for row, example in enumerate(examples):
        tokens = len(example.ids)
        ids[row, :tokens], labels[row, :tokens], text[row, :tokens] = example.ids, example.labels, row
    targets = torch.from_numpy(labels).to(model.device)
    hidden = encode(model, torch.from_numpy(ids).to(model.device), torch.from_numpy(text).to(model.device))
    chosen = targets >= 0
    places, counts = chosen_positions(chosen), chosen.sum(1).tolist()
    states, wanted = hidden.flatten(0, 1)[places], targets.flatten()[places]
    loss = map_logits(cross_entropy, [language_head(model)], [states], wanted, rows=logit_rows(model))[: sum(counts)]
    return [(float(part.double().sum()), count) for part, count in zip(loss.split(counts), counts, strict=True)]
