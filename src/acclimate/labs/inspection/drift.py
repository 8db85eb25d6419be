"""Representation drift: how far adaptation moved the static embeddings and the hidden states of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.base.device import in_full, to_device
from acclimate.base.errors import UserError
from acclimate.data.tokenizing import read_as_text
from acclimate.models.batching import micro_batch_tokens
from acclimate.models.encoding import encode_layers
from acclimate.models.loading import LanguageModel, load_language_model, virtual_ids
from acclimate.models.probe import attach

ROUNDING = 1e-12
"""Variation below this share of the raw sum of squares is treated as rounding error."""


@dataclass(frozen=True)
class EmbeddingDrift:
    """Distance between the rows of two embedding matrices.

    Attributes:
        distance: Mean Euclidean distance between a row before and after.
        coordinate: ``distance`` divided by the square root of the width, comparable across model widths.
        share: Mean distance divided by the mean norm of the rows before.
        cosine: Mean cosine similarity between a row before and after. Zero rows are skipped.
        moved: Fraction of rows that changed.
        tokens: Number of rows.
    """

    distance: float
    coordinate: float
    share: float
    cosine: float
    moved: float
    tokens: int


def embedding_drift(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None = None) -> EmbeddingDrift:
    """Compare two embedding matrices row by row.

    Args:
        before: (tokens, width).
        after: (tokens, width).
        weights: (tokens,), the weight of each row in the means, for example its frequency in a text. Rows of weight
            zero are skipped. None weighs all rows equally.

    Raises:
        ValueError: If the shapes differ or all weights are zero.
    """
    weight = np.ones(len(before)) if weights is None else np.asarray(weights, dtype=float)
    if before.shape != after.shape or weight.shape != before.shape[:1] or not weight.sum() > 0:
        raise ValueError("Expected two matrices of the same shape, and weights for their rows that are not all zero.")
    old, new, weight = (values[weight > 0] for values in (before.astype(float), after.astype(float), weight))
    distances, norms = np.linalg.norm(new - old, axis=1), np.linalg.norm(old, axis=1)
    products = norms * np.linalg.norm(new, axis=1)
    nonzero = products > 0
    cosines = (old[nonzero] * new[nonzero]).sum(1) / products[nonzero]
    distance = float(np.average(distances, weights=weight))
    norm = float(np.average(norms, weights=weight))
    return EmbeddingDrift(
        distance=distance,
        coordinate=distance / before.shape[1] ** 0.5,
        share=distance / norm if norm else 0.0,
        cosine=float(np.average(cosines, weights=weight[nonzero])) if nonzero.any() else 0.0,
        moved=float(np.average(distances > 0, weights=weight)),
        tokens=len(weight),
    )


def regular_vocabulary(loaded: LanguageModel) -> dict[str, int]:
    """Return the id of each token, without virtual tokens."""
    virtual = set(virtual_ids(loaded.tokenizer))
    return {token: index for token, index in loaded.tokenizer.get_vocab().items() if index not in virtual}


def static_embeddings(loaded: LanguageModel) -> np.ndarray:
    """Return the rows of the input embedding matrix that belong to the regular vocabulary: (tokens, width)."""
    size = max(regular_vocabulary(loaded).values()) + 1
    weight: Any = loaded.model.get_input_embeddings().weight
    return weight.detach().float().numpy()[:size]


class LinearCKA:
    """Linear CKA of two matrices whose rows arrive in batches.

    With X (n, p) and Y (n, q), both with centred columns,

        CKA(X, Y) = ||Y'X||^2 / (||X'X|| ||Y'Y||)        (Frobenius norms)

    (Kornblith et al., ICML 2019, Eq. 5 with linear kernels). It is 1 if one matrix is a rotation of the other, and
    invariant to isotropic scaling and to translation. It is biased upwards unless there are many more rows than
    columns.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._sums: list[Tensor] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows (n, p) and (n, q). Sums are accumulated in float64."""
        x, y = in_full(x), in_full(y)
        new = [x.sum(0), y.sum(0), x.T @ x, y.T @ y, y.T @ x]
        self._rows += len(x)
        self._sums = [old + more for old, more in zip(self._sums, new, strict=True)] if self._sums else new

    def value(self) -> float:
        """Return the linear CKA of all rows so far; 0 if one of the matrices is constant."""
        x, y, raw_x, raw_y, yx = self._sums
        xx = raw_x - torch.outer(x, x) / self._rows
        yy = raw_y - torch.outer(y, y) / self._rows
        yx = yx - torch.outer(y, x) / self._rows
        # After centring, identical rows leave rounding errors rather than exact zeros.
        if any(float(own.norm()) <= ROUNDING * float(raw.norm()) for own, raw in ((xx, raw_x), (yy, raw_y))):
            return 0.0
        return float(yx.square().sum()) / float(xx.norm() * yy.norm())


class _LayerDrift:
    """Running sums of one layer over all tokens."""

    def __init__(self) -> None:
        self._cka = LinearCKA()
        self._tokens = 0
        self._distance = self._norm = self._cosine = 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        before, after = in_full(before), in_full(after)
        self._cka.add(before, after)
        self._tokens += len(before)
        self._distance += float((after - before).norm(dim=1).sum())
        self._norm += float(before.norm(dim=1).sum())
        self._cosine += float(torch.cosine_similarity(before, after, dim=1).sum())

    def result(self) -> dict[str, float]:
        return {
            "cka": self._cka.value(),
            "distance": self._distance / self._tokens,
            "share": self._distance / self._norm if self._norm else 0.0,
            "cosine": self._cosine / self._tokens,
        }


def measure_drift(
    base: str | Path, adapted: str | Path, texts: Sequence[str], *, max_length: int = 128
) -> dict[str, Any]:
    """Measure how far an adapted model has moved from its base model on the same unmasked text.

    Args:
        base: Folder or Hub name of the base model. It needs no language-model head.
        adapted: Folder or Hub name of the adapted model.
        texts: Documents, each truncated to ``max_length`` tokens.
        max_length: Maximum tokens per text, special tokens included. Virtual tokens of either model are added to it
            and are not compared.

    Returns:
        ``texts`` and ``tokens``: number of texts and of ordinary tokens compared.
        ``embeddings``: fields of :class:`EmbeddingDrift`, over the whole vocabulary (``"all"``) and over the text
        (``"read"``, each token weighted by its frequency).
        ``layers``: for the input of the first layer and the output of each layer, over all tokens: ``cka`` (linear
        CKA before and after), ``distance`` (mean Euclidean distance), ``share`` (mean distance over the mean norm
        before), ``cosine`` (mean cosine similarity).

    Raises:
        UserError: If a model cannot be read, the vocabularies differ, or there are no tokens to compare.
    """
    if isinstance(texts, str):
        raise UserError("'texts' expects a list of strings, not one string or a path.")
    start, end = load_language_model(base), load_language_model(adapted)
    if regular_vocabulary(start) != regular_vocabulary(end):
        raise UserError(f"'{adapted}' and '{base}' have different vocabularies; compare models that share one.")
    before, after = static_embeddings(start), static_embeddings(end)
    rows = [_encode(loaded, texts, max_length) for loaded in (start, end)]
    counts = np.zeros(len(before), dtype=np.int64)
    for ids, own in rows[0]:
        counts += np.bincount(ids[own], minlength=len(counts))[: len(counts)]
    counts[start.tokenizer.all_special_ids] = 0
    if not counts.any():
        raise UserError("The texts have no tokens to compare representations on; give texts that are not empty.")
    ordinary = np.ones(len(before), dtype=bool)
    ordinary[start.tokenizer.all_special_ids] = False
    embeddings = {
        "all": asdict(embedding_drift(before, after, ordinary)),
        "read": asdict(embedding_drift(before, after, counts)),
    }
    for loaded in (start, end):
        attach(to_device(loaded.model))
        loaded.model.eval()
    layers: list[_LayerDrift] = []
    with torch.no_grad():
        budget = min(micro_batch_tokens(loaded.model, _state_bytes(loaded)) for loaded in (start, end))
        for group in _batches(rows, budget):
            states = [_states(loaded, [own[i] for i in group]) for loaded, own in zip((start, end), rows, strict=True)]
            layers = layers or [_LayerDrift() for _ in states[0]]
            for layer, old, new in zip(layers, *states, strict=True):
                layer.add(old, new)
    return {
        "texts": sum(len(own) > 0 for _, own in rows[0]),
        "tokens": sum(len(own) for _, own in rows[0]),
        "embeddings": embeddings,
        "layers": [layer.result() for layer in layers],
    }


def _encode(loaded: LanguageModel, texts: Sequence[str], max_length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each text its token ids, (tokens,), and the positions of its ordinary tokens."""
    virtual = virtual_ids(loaded.tokenizer)
    encoded: Any = read_as_text(loaded.tokenizer)(
        list(texts),
        truncation=True,
        max_length=max_length + len(virtual),
        return_special_tokens_mask=True,
    )
    return [
        (np.array(ids), np.flatnonzero(np.array(added) == 0))
        for ids, added in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
    ]


def _batches(rows: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], budget: int) -> Iterator[list[int]]:
    """Yield batches of indices of non-empty texts, longest first, each within the token budget."""
    lengths = [max(len(ids) for ids, _ in pair) for pair in zip(*rows, strict=True)]
    order = sorted((i for i, (_, own) in enumerate(rows[0]) if len(own)), key=lambda i: -lengths[i])
    while order:
        size = max(1, budget // lengths[order[0]])
        yield order[:size]
        order = order[size:]


def _state_bytes(loaded: LanguageModel) -> int:
    """Return the bytes that the fp32 states of one token need in all layers of both models."""
    config = loaded.model.config
    return 2 * 4 * (config.num_hidden_layers + 1) * config.hidden_size


def _states(loaded: LanguageModel, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Tensor]:
    """Return the hidden states of the ordinary tokens for every layer, each (tokens, width)."""
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
