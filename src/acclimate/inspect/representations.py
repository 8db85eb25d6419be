"""How far a model moved: hidden states of the same text before and after, layer by layer, and static embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.device import to_device
from acclimate.errors import UserError
from acclimate.inspect.embeddings import static_table, vocabulary
from acclimate.inspect.movement import movement
from acclimate.models import LanguageModel, attach, load_language_model
from acclimate.models.batching import micro_batch_tokens
from acclimate.models.encoding import encode_layers
from acclimate.modules import virtual_ids
from acclimate.progress import Progress

NOISE = 1e-12
"""Share of the sum of squares below which what varies is taken for rounding."""


class Products:
    """What linear CKA needs of two matrices that come piece by piece: sums and products over their rows.

    With X (n, p) and Y (n, q), their columns centred,

        CKA(X, Y) = ||Y'X||^2 / (||X'X|| ||Y'Y||)        (Frobenius norms)

    (Kornblith et al., ICML 2019, Eq. 5 with linear kernels). It is 1 if one is a rotation of the other, also scaled
    or shifted, and does not change with either. It is biased upwards unless there are many more rows than columns.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._parts: list[Tensor] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows (n, p) and (n, q); sums are kept in float64."""
        x, y = x.double(), y.double()
        new = [x.sum(0), y.sum(0), x.T @ x, y.T @ y, y.T @ x]
        self._rows += len(x)
        self._parts = [old + more for old, more in zip(self._parts, new, strict=True)] if self._parts else new

    def cka(self) -> float:
        """Return linear CKA of all rows so far; zero where one of the two does not vary."""
        x, y, raw_x, raw_y, yx = self._parts
        xx = raw_x - torch.outer(x, x) / self._rows
        yy = raw_y - torch.outer(y, y) / self._rows
        yx = yx - torch.outer(y, x) / self._rows
        # What is left of rows that are all the same is rounding, not variation.
        if any(float(own.norm()) <= NOISE * float(raw.norm()) for own, raw in ((xx, raw_x), (yy, raw_y))):
            return 0.0
        return float(yx.square().sum()) / float(xx.norm() * yy.norm())


class _Layer:
    """Sums of one layer over all tokens."""

    def __init__(self) -> None:
        self._products = Products()
        self._tokens = 0
        self._distance = self._length = self._cosine = 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        before, after = before.double(), after.double()
        self._products.add(before, after)
        self._tokens += len(before)
        self._distance += float((after - before).norm(dim=1).sum())
        self._length += float(before.norm(dim=1).sum())
        self._cosine += float(torch.cosine_similarity(before, after, dim=1).sum())

    def result(self) -> dict[str, float]:
        return {
            "cka": self._products.cka(),
            "distance": self._distance / self._tokens,
            "share": self._distance / self._length if self._length else 0.0,
            "cosine": self._cosine / self._tokens,
        }


def measure_moved(
    base: str | Path, adapted: str | Path, texts: Sequence[str], *, max_length: int = 128, progress: bool = False
) -> dict[str, Any]:
    """Measure how far an adapted model is from its base, on the same text, nothing of it masked.

    Args:
        base: The model that was adapted: a folder or a name on the hub. A masked-LM head is not needed.
        adapted: What became of it.
        texts: The documents; of each the first ``max_length`` tokens are read.
        max_length: Tokens, special ones included; virtual tokens of either model come on top and are not compared.
        progress: Show a bar.

    Returns:
        ``texts`` and ``tokens``: how many of each were compared, special tokens aside.
        ``embeddings``: a :class:`~acclimate.inspect.movement.Movement` of the static embeddings, over ``"all"``
        tokens of the vocabulary, and over the text as ``"read"``, each token as often as it occurs.
        ``layers``: for what enters the first layer, and what each layer gives: ``cka``, linear CKA of the states of
        all tokens before and after; ``distance``, the mean Euclidean distance of a state; ``share``, that over the
        mean length of the states before; ``cosine``, the mean cosine of a state before and after.

    Raises:
        UserError: If a model cannot be read, the two have different vocabularies, or there is no token to compare.
    """
    if isinstance(texts, str):
        raise UserError("Give the texts themselves, a list of strings, not a path.")
    start, end = load_language_model(base), load_language_model(adapted)
    if vocabulary(start) != vocabulary(end):
        raise UserError(
            f"'{adapted}' has another vocabulary than '{base}', so their representations cannot be matched."
        )
    before, after = static_table(start), static_table(end)
    rows = [_rows(loaded, texts, max_length) for loaded in (start, end)]
    counts = np.zeros(len(before), dtype=np.int64)
    for ids, own in rows[0]:
        counts += np.bincount(ids[own], minlength=len(counts))[: len(counts)]
    counts[start.tokenizer.all_special_ids] = 0
    if not counts.any():
        raise UserError("The text to compare representations on has no token of the vocabulary.")
    ordinary = np.ones(len(before), dtype=bool)
    ordinary[start.tokenizer.all_special_ids] = False
    embeddings = {
        "all": asdict(movement(before, after, ordinary)),
        "read": asdict(movement(before, after, counts)),
    }
    for loaded in (start, end):
        attach(loaded.model)
        to_device(loaded.model)
        loaded.model.eval()
    layers: list[_Layer] = []
    with torch.no_grad(), Progress("hidden states", len(texts), unit="texts", enabled=progress) as bar:
        done = 0
        for group in _groups(rows, min(micro_batch_tokens(one.model, _state_bytes(one)) for one in (start, end))):
            states = [_states(loaded, [own[i] for i in group]) for loaded, own in zip((start, end), rows, strict=True)]
            layers = layers or [_Layer() for _ in states[0]]
            for layer, one, other in zip(layers, *states, strict=True):
                layer.add(one, other)
            bar.update(done := done + len(group))
    return {
        "texts": sum(len(own) > 0 for _, own in rows[0]),
        "tokens": sum(len(own) for _, own in rows[0]),
        "embeddings": embeddings,
        "layers": [layer.result() for layer in layers],
    }


def _rows(loaded: LanguageModel, texts: Sequence[str], max_length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the ids of each text, (tokens,), and the places of those that are its own."""
    virtual = virtual_ids(loaded.tokenizer)
    found: Any = loaded.tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length + len(virtual),
        split_special_tokens=True,  # one that stands in a text is text, as in a corpus
        return_special_tokens_mask=True,
    )
    return [
        (np.array(ids), np.flatnonzero(np.array(added) == 0))
        for ids, added in zip(found["input_ids"], found["special_tokens_mask"], strict=True)
    ]


def _groups(rows: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], budget: int) -> Iterator[list[int]]:
    """Group the numbers of the texts that have tokens, long ones first, so that a group fits the budget of tokens."""
    lengths = [max(len(ids) for ids, _ in pair) for pair in zip(*rows, strict=True)]
    order = sorted((i for i, (_, own) in enumerate(rows[0]) if len(own)), key=lambda i: -lengths[i])
    while order:
        size = max(1, budget // lengths[order[0]])
        yield order[:size]
        order = order[size:]


def _state_bytes(loaded: LanguageModel) -> int:
    """Return the bytes of a token's states in all layers, of this model and of the one that it is compared with."""
    config = loaded.model.config
    return 2 * 4 * (config.num_hidden_layers + 1) * config.hidden_size


def _states(loaded: LanguageModel, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Tensor]:
    """Return the hidden states of the texts' own tokens in every layer, each (tokens, width)."""
    width = max(len(ids) for ids, _ in rows)
    padding = loaded.tokenizer.pad_token_id
    ids = np.full((len(rows), width), padding if isinstance(padding, int) else 0, dtype=np.int64)
    text = np.full((len(rows), width), -1, dtype=np.int64)
    chosen = np.zeros((len(rows), width), dtype=bool)
    for row, (tokens, own) in enumerate(rows):
        ids[row, : len(tokens)], text[row, : len(tokens)] = tokens, row
        chosen[row, own] = True
    tensors = [torch.from_numpy(values).to(loaded.model.device) for values in (ids, text, chosen)]
    return [states[tensors[2]] for states in encode_layers(loaded.model, tensors[0], tensors[1])]
