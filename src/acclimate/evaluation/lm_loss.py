"""Held-out loss of language models, comparable between models: batching does not affect which tokens are predicted."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import copy_to, to_device
from acclimate.base.errors import UserError
from acclimate.data.tokenizing import read_as_text
from acclimate.models.batching import chosen_positions, logit_rows, micro_batch_tokens, padding_policy
from acclimate.models.encoding import encode
from acclimate.models.families import language_head, longest_text
from acclimate.models.kinds import ModelKind, kind_of
from acclimate.models.loading import LanguageModel, load_language_model, virtual_ids
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX, MASK_RATE
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.pairs import default_corruption
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits

MAX_CHARACTERS = 4_000
"""Characters that are read of each document for a causal model, so that a few long ones do not dominate the cost. A
limit in characters reads the same text with every tokenizer."""
CONTEXT_SHARE = 4
"""Consecutive windows of a document overlap by the length of a window divided by this."""
BEGIN_ATTRIBUTE = "acclimate_begin_of_rows"
"""Attribute of a model with the result of :func:`begin_of_later_rows`."""
MEASURED_ROWS, LEAST_GAIN = 8, 0.1
"""Rows on which it is measured whether a model needs a begin token in each, and its least gain in nats per token."""


class TargetRow(NamedTuple):
    """The input ids of a row and the tokens to predict, -100 elsewhere; both (tokens,)."""

    ids: np.ndarray
    labels: np.ndarray


class Memory(NamedTuple):
    """A second model, in evaluation mode on the device of the first, and its share of the predictions, from 0 to 1."""

    model: PreTrainedModel
    share: float

    def measure(self, logits: Tensor, memory: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each position (positions,); zero where the label is -100."""
        return nn.functional.nll_loss(mix_logits(logits, memory, self.share), labels, reduction="none")


class Reference(NamedTuple):
    """A second model, as :class:`Memory`, from whose predictions the divergence is measured instead of the loss."""

    model: PreTrainedModel

    def measure(self, logits: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
        """Return KL(reference || model) of each position in nats (positions,)."""
        return divergence(reference, logits)


class TargetDocument(NamedTuple):
    """The rows of a document, its ordinary tokens, and the UTF-8 bytes that they cover."""

    rows: list[TargetRow]
    tokens: int
    bytes: int


def language_model_loss(
    model: PreTrainedModel | str | Path,
    texts: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 128,
    rate: float = MASK_RATE,
    seed: int = 13,
    memory: Memory | None = None,
) -> dict[str, Any]:
    """Measure how well a language model predicts tokens of held-out text.

    A masked model reads the first ``max_length`` tokens of each text, of which ``rate`` of the ordinary ones (at least
    one, rounded) are replaced by the mask token. Which ones depends on the text and the seed alone, so that all models
    with the same tokenizer predict the same tokens, and neither batch size nor order matters.

    A causal model reads the first :data:`MAX_CHARACTERS` characters of each text, whatever its tokenizer, in windows
    of ``max_length`` tokens, and predicts each token once. From the second window on, a token is predicted from at
    least a quarter of a window. The first token is predicted from the begin token, or the end token of a tokenizer
    that has no other, as in ``lm-eval``. Special tokens themselves are not predicted.

    An encoder-decoder reads the first ``max_length`` tokens of each text, corrupted by :func:`default_corruption`.
    What is hidden depends on the text and the seed alone. All tokens of the target are predicted, sentinels included.

    The forward pass is in fp32.

    Args:
        model: A language model, or its folder or Hub name.
        texts: The documents.
        tokenizer: The tokenizer of a model in memory.
        max_length: Maximum tokens per text, or per window of it, including special tokens but not virtual ones.
        rate: Share of tokens that are masked.
        seed: Random seed of the masks.
        memory: A second model of the same kind and tokenizer, whose predictions are mixed with the first one's.

    Returns:
        ``kind``: name of the kind of the model; ``nats``: mean loss over all predicted tokens;
        ``masked``: their number; ``texts``: number of texts;
        ``per_text``: summed loss of each text, and ``per_text_masked``: its predicted tokens;
        ``tokens``: tokens read, without special ones; ``bytes``: UTF-8 bytes of the text that they cover, and
        ``per_text_tokens`` and ``per_text_bytes``: the same for each text, 0 for one without a token to predict;
        ``bits_per_byte``: nats * tokens / (bytes * ln 2), which does not depend on how long the tokens of a vocabulary
        are. For a causal model this is a code length, comparable across tokenizers. For a masked model it is a
        pseudo-measure: each token is predicted from both sides with, by default, 85 % of the others visible, and it is
        lower than a causal model's. For an encoder-decoder, tokens and bytes are those of the target: sentinels are
        counted among the tokens, and only text among the bytes. Tokens that are not predicted, such as the unknown
        ones of a masked model, count with the mean loss.

    Raises:
        UserError: If the model has no trained head or cannot read texts of that length, or no text has a token to
            predict.
        ValueError: If a model in memory comes without a tokenizer.
    """
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise ValueError("a model in memory needs its tokenizer")
        return _measure(model, tokenizer, texts, max_length, rate, seed, memory)
    loaded = open_language_model(model)
    return _measure(loaded.model, loaded.tokenizer, texts, max_length, rate, seed, memory)


def open_language_model(path: str | Path) -> LanguageModel:
    """Load a model whose loss is measured onto the default device.

    Raises:
        UserError: If it cannot be loaded, or has no trained language-model head.
    """
    loaded = load_language_model(path)
    if loaded.absent_head:
        raise UserError(
            f"The model '{path}' has no language-model head, so it has no {loaded.kind.loss_name}; adapt it first."
        )
    to_device(loaded.model)
    return loaded


def _measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    rate: float,
    seed: int,
    memory: Memory | None,
) -> dict[str, Any]:
    attach(model)
    if memory:
        attach(memory.model)
    kind = kind_of(model)
    documents = read_targets(model, tokenizer, texts, max_length, rate, seed)
    examples = [(index, row) for index, document in enumerate(documents) for row in document.rows]
    losses, counts = [0.0] * len(texts), [0] * len(texts)
    found = summed_losses(model, tokenizer, [row for _, row in examples], memory)
    for (index, _), (loss, count) in zip(examples, found, strict=True):
        losses[index] += loss
        counts[index] += count
    sizes = [document.bytes if document.rows else 0 for document in documents]
    tokens = sum(document.tokens for document in documents if document.rows)
    nats = sum(losses) / sum(counts)
    return {
        "kind": kind.name,
        "nats": nats,
        "bits_per_byte": nats * tokens / (sum(sizes) * math.log(2)),
        "tokens": tokens,
        "bytes": sum(sizes),
        "masked": sum(counts),
        "texts": len(texts),
        "per_text": losses,
        "per_text_masked": counts,
        "per_text_bytes": sizes,
        "per_text_tokens": [document.tokens if document.rows else 0 for document in documents],
    }


def read_targets(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    rate: float = MASK_RATE,
    seed: int = 13,
) -> list[TargetDocument]:
    """Return the rows on which the loss of a model on texts is measured; see :func:`language_model_loss`.

    Raises:
        UserError: If the model cannot read texts of that length, or no text has a token to predict.
    """
    kind = kind_of(model)
    if kind.pairs:
        documents = _corrupt_documents(tokenizer, texts, max_length, rate, seed)
    elif kind.targets is None:
        documents = _mask_documents(tokenizer, texts, max_length, rate, seed)
    else:
        reader = read_as_text(tokenizer)

        def read(begin: int | None) -> list[TargetDocument]:
            return [_read_in_windows(kind, reader, text[:MAX_CHARACTERS], max_length, begin) for text in texts]

        documents = read(None)
        later = (row.ids for document in documents for row in document.rows[1:])
        if begin := begin_of_later_rows(model, tokenizer, later):
            documents = read(begin)
    rows = [row.ids for document in documents for row in document.rows]
    lengths = [
        max(int((ids >= 0).sum()), int((ids < 0).sum())) for ids in rows
    ]  # of source and target, or of one text
    available = longest_text(model)
    if available is not None and max(lengths, default=0) > available:
        virtual = len(virtual_ids(tokenizer))
        raise UserError(
            f"max_length={max_length}"
            + (f" with {virtual} virtual tokens" if virtual else "")
            + f" is more than the {available} positions of this model. Lower it for all models whose {kind.loss_name} "
            "you compare."
        )
    if not lengths:
        raise UserError(f"The text to measure the {kind.loss_name} on has no token to predict.")
    return documents


def begin_of_later_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Iterable[np.ndarray]
) -> int | None:
    """Return the begin token that a model needs in each row of a document; None if it reads later rows better without.

    Some models are lost without it (Gemma), others expect it at the beginning of a document only. So the loss of some
    rows is measured with it and without, once per model, if the tokenizer begins texts with it.

    Args:
        model: A causal language model that :func:`acclimate.models.probe.attach` has prepared.
        tokenizer: Its tokenizer.
        rows: Token ids of rows that continue a document; the first :data:`MEASURED_ROWS` of more than two are read.
    """
    if hasattr(model, BEGIN_ATTRIBUTE):  # one answer, also after noise or training
        return getattr(model, BEGIN_ATTRIBUTE)
    begin, targets = tokenizer.bos_token_id, kind_of(model).targets
    if not isinstance(begin, int) or targets is None or tokenizer("a")["input_ids"][:1] != [begin]:
        return None
    read = list(islice((row for row in rows if len(row) > 2), MEASURED_ROWS))
    if not read:
        return None
    pairs = []
    for row in read:
        labels = targets(row[None], np.zeros_like(row)[None])[0]
        pairs += [TargetRow(row, labels), TargetRow(np.append(begin, row), np.append(IGNORE_INDEX, labels))]
    sums = [loss for loss, _ in summed_losses(model, tokenizer, pairs)]
    gain = (sum(sums[::2]) - sum(sums[1::2])) / sum(len(row) - 1 for row in read)
    setattr(model, BEGIN_ATTRIBUTE, begin if gain > LEAST_GAIN else None)
    return begin if gain > LEAST_GAIN else None


def summed_losses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[TargetRow],
    memory: Memory | Reference | None = None,
) -> list[tuple[float, int]]:
    """Return the summed loss in nats of each row, and its number of predicted tokens.

    Args:
        model: A language model that :func:`acclimate.models.probe.attach` has prepared.
        tokenizer: Its tokenizer.
        rows: The rows; batches of them depend on their lengths alone.
        memory: A second model, prepared as well, whose predictions are mixed with the first one's; with a
            :class:`Reference` the divergence from its predictions is returned instead of the loss.
    """
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    found = [(0.0, 0)] * len(rows)
    policy = padding_policy(model)
    budget = micro_batch_tokens(model, times=2)
    training = model.training
    model.eval()
    start = 0
    with torch.no_grad():
        while start < len(order):
            width = policy.padded_width(len(rows[order[start]].ids))
            group = order[start : start + max(1, budget // width)]
            start += len(group)
            losses = _group_losses(model, tokenizer, [rows[index] for index in group], width, memory)
            for index, loss in zip(group, losses, strict=True):
                found[index] = loss
    model.train(training)
    return found


def _mask_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, rate: float, seed: int
) -> list[TargetDocument]:
    """Return the first ``max_length`` tokens of each text as a row with masked tokens."""
    virtual = virtual_ids(tokenizer)
    encoded = read_as_text(tokenizer)(
        list(texts),
        truncation=True,
        max_length=max_length + len(virtual),
        return_special_tokens_mask=True,
        return_offsets_mapping=tokenizer.is_fast,
    )
    documents = []
    for index, text in enumerate(texts):
        row = _mask_row(tokenizer, np.array(encoded["input_ids"][index]), virtual, rate, seed)
        if row is None:
            documents.append(TargetDocument([], 0, 0))
        else:
            extent = _count_tokens_and_bytes(tokenizer, text, encoded, index, max_length + len(virtual))
            documents.append(TargetDocument([row], *extent))
    return documents


def _corrupt_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, rate: float, seed: int
) -> list[TargetDocument]:
    """Return the first ``max_length`` tokens of each text as source and target, see :func:`encode`."""
    vocabulary = make_vocabulary(tokenizer)
    corruption = default_corruption(vocabulary, rate)
    encoded = read_as_text(tokenizer)(
        list(texts), truncation=True, max_length=max_length, return_offsets_mapping=tokenizer.is_fast
    )
    documents = []
    for index, text in enumerate(texts):
        ids = np.array(encoded["input_ids"][index], dtype=np.int64)
        rng = np.random.default_rng([seed, zlib.crc32(ids.tobytes())])
        made = corruption.pair(ids, ~np.isin(ids, tokenizer.all_special_ids), vocabulary, rng)
        if not made.spelled.any():
            documents.append(TargetDocument([], 0, 0))
            continue
        row = np.concatenate([made.source, ~made.target])
        labels = np.where(row < 0, ~row, IGNORE_INDEX)
        if tokenizer.is_fast:
            places, offsets = np.flatnonzero(made.spelled), encoded["offset_mapping"][index]
            runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)  # some tokens do not cover the blanks
            spelled = "".join(text[offsets[run[0]][0] : offsets[run[-1]][1]] for run in runs)
        else:
            spelled = str(tokenizer.decode(ids[made.spelled], skip_special_tokens=True))
        size = len(spelled.encode("utf-8", "surrogatepass"))
        documents.append(TargetDocument([TargetRow(row, labels)], len(made.target), size))
    return documents


def read_for_scoring(tokenizer: PreTrainedTokenizerBase, text: str, add_begin: bool = False) -> tuple[list[int], int]:
    """Return the ids of a text for a causal model, and how many of them are ordinary tokens.

    Special tokens that the tokenizer puts before the text are kept, and those after it are left out.

    Args:
        tokenizer: A tokenizer that reads special tokens in a text as text
            (:func:`acclimate.data.tokenizing.read_as_text`).
        text: The text.
        add_begin: Whether to begin a text without special tokens with the begin token, or the end token of a tokenizer
            that has no other, so that its first token can be predicted.
    """
    encoded = tokenizer(text, return_special_tokens_mask=True, verbose=False)
    ordinary = np.flatnonzero(np.array(encoded["special_tokens_mask"]) == 0)
    if not len(ordinary):
        return [], 0
    ids: list[int] = encoded["input_ids"][: ordinary[-1] + 1]
    before = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if add_begin and ordinary[0] == 0 and before is not None:
        ids = [before, *ids]
    return ids, len(ordinary)


def _read_in_windows(
    kind: ModelKind, tokenizer: PreTrainedTokenizerBase, text: str, max_length: int, begin: int | None = None
) -> TargetDocument:
    """Return the windows of a text, in which each token after the first special ones is predicted once.

    Windows after the first begin with the token ``begin``, if there is one.
    """
    ids, ordinary = read_for_scoring(tokenizer, text, add_begin=True)
    if not ordinary:
        return TargetDocument([], 0, 0)
    row, rows = np.array(ids), []
    context = max(1, max_length // CONTEXT_SHARE)
    start = scored = 0  # targets of the first positions have been predicted
    while scored < len(row) - 1 and max_length > 1:
        added = np.array([] if begin is None or not start or max_length < 3 else [begin], dtype=row.dtype)
        window = row[start : start + max_length - len(added)]
        labels = kind.targets(window[None], np.zeros_like(window)[None])[0]  # type: ignore[misc]
        labels[: scored - start] = IGNORE_INDEX
        ignored = np.full_like(added, IGNORE_INDEX)
        rows.append(TargetRow(np.append(added, window), np.append(ignored, labels)))
        scored = start + len(window) - 1
        start = scored + 1 - context
    return TargetDocument(rows, ordinary, len(text.encode("utf-8", "surrogatepass")))


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


def _mask_row(
    tokenizer: PreTrainedTokenizerBase, ids: np.ndarray, virtual: Sequence[int], rate: float, seed: int
) -> TargetRow | None:
    """Return the masked ids of a text and its tokens to predict; None if there is nothing to predict."""
    places = _choose_masked_positions(ids, tokenizer.all_special_ids, virtual, rate, seed)
    if places is None:
        return None
    masked, labels = ids.copy(), np.full_like(ids, IGNORE_INDEX)
    masked[places], labels[places] = tokenizer.mask_token_id, ids[places]
    return TargetRow(masked, labels)


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
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[TargetRow],
    width: int,
    memory: Memory | Reference | None,
) -> list[tuple[float, int]]:
    """Return the summed loss and the number of predicted tokens of each text, computed in one forward pass."""
    padding = tokenizer.pad_token_id
    shape = (len(examples), width)
    ids = np.full(shape, padding if isinstance(padding, int) else 0, dtype=np.int64)
    labels, text = np.full(shape, IGNORE_INDEX, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    for row, example in enumerate(examples):
        tokens = len(example.ids)
        ids[row, :tokens], labels[row, :tokens], text[row, :tokens] = example.ids, example.labels, row
    device, targets = model.device, torch.from_numpy(labels)
    models = [model, memory.model] if memory else [model]
    inputs = (copy_to(torch.from_numpy(ids), device), copy_to(torch.from_numpy(text), device))
    chosen = targets >= 0
    places, counts = chosen_positions(chosen, device.type), chosen.sum(1).tolist()
    states = [encode(one, *inputs).flatten(0, 1)[copy_to(places, device)] for one in models]
    wanted = copy_to(targets.flatten()[places], device)
    function = memory.measure if memory else cross_entropy
    loss = map_logits(function, list(map(language_head, models)), states, wanted, rows=logit_rows(model))
    loss = loss[: sum(counts)]
    parts = loss.cpu().double().split(counts)  # the host waits once, not for each text
    return [(float(part.sum()), count) for part, count in zip(parts, counts, strict=True)]


def mix_logits(logits: Tensor, memory: Tensor, share: float) -> Tensor:
    """Return the logarithm of ``(1 - share) p + share p_memory``, both given by their logits (..., vocabulary).

    Models of one tokenizer can differ in unused rows of their embeddings, so the memory is cut or filled up.
    """
    missing = logits.shape[-1] - memory.shape[-1]
    memory = nn.functional.pad(memory, (0, missing), value=-math.inf)
    if share in (0, 1):
        return (memory if share else logits).log_softmax(-1)
    return torch.logaddexp(math.log1p(-share) + logits.log_softmax(-1), math.log(share) + memory.log_softmax(-1))


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Return KL(reference || model) in nats (...,), both given by their logits (..., vocabulary).

    As in :func:`mix_logits`, the reference is cut or filled up.
    """
    reference = nn.functional.pad(reference, (0, logits.shape[-1] - reference.shape[-1]), value=-math.inf)
    expected = reference.log_softmax(-1)
    terms = expected.exp() * (expected - logits.log_softmax(-1))
    return terms.nan_to_num_(nan=0.0).sum(-1) if torch.isneginf(expected).any() else terms.sum(-1)
