"""Rows of a vocabulary: a language model gets embeddings and outputs for new tokens (ChipNeMo, Liu et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.parts.updates import FreezeOtherRows, UpdateRule


def add_rows(
    model: PreTrainedModel, first: int, parts: Sequence[Sequence[int]], *, inputs: Tensor | None, outputs: bool
) -> list[nn.Parameter]:
    """Give a model rows for new tokens; the rows of other tokens, and so their logits, stay as they are.

    Args:
        model: A language model.
        first: Id of the first new token.
        parts: Ids of the tokens that each new one replaces. Its bias in the head is the mean of theirs.
        inputs: Embeddings of the new tokens (tokens, width); by default the mean embedding of their parts. A head that
            is tied to the embeddings has the same rows.
        outputs: Whether the rows of an untied head are the means of the parts' rows; otherwise they are zero, as in
            ChipNeMo.

    Returns:
        The tables with the new rows: embeddings, and the weight of an untied head and the bias of the head, if any.
    """
    size, embeddings = first + len(parts), model.get_input_embeddings()
    if size > len(embeddings.weight):  # type: ignore[arg-type]
        model.resize_token_embeddings(size, mean_resizing=False)
        embeddings = model.get_input_embeddings()
    table: nn.Parameter = embeddings.weight  # type: ignore[assignment]
    head = model.get_output_embeddings()
    new = slice(first, size)
    found = [table]
    with torch.no_grad():
        table[new] = _mean(table, parts) if inputs is None else inputs.to(table)
        if head is not None and head.weight is not table:
            found.append(head.weight)
            head.weight[new] = _mean(head.weight, parts) if outputs else 0.0
        bias = getattr(head, "bias", None)
        if isinstance(bias, nn.Parameter):
            found.append(bias)
            bias[new] = _mean(bias, parts)
    return found


def _mean(table: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    return torch.stack([table[list(ids)].mean(0) for ids in parts])


class TrainNewRows(UpdateRule):
    """Train the new rows of some tables; the other rows keep their exact values."""

    removes_gradients: ClassVar[bool] = True

    def __init__(self, tables: Sequence[nn.Parameter], rows: Sequence[int]) -> None:
        self._rules = [FreezeOtherRows(table, rows) for table in tables]

    def after_backward(self) -> None:
        """Zero the gradients of the other rows."""
        self._each(FreezeOtherRows.after_backward)

    def after_step(self) -> None:
        """Restore the other rows."""
        self._each(FreezeOtherRows.after_step)

    def _each(self, run: Callable[[FreezeOtherRows], None]) -> None:
        for rule in self._rules:
            run(rule)


def map_vectors(vectors: Tensor, known: Tensor, embeddings: Tensor) -> Tensor:
    """Map vectors (new, dimension) of another space to the space of embeddings by :func:`fit_map`: (new, width)."""
    weight, bias = fit_map(known, embeddings)
    return (vectors.double() @ weight + bias).float()


def fit_map(known: Tensor, embeddings: Tensor, ridge: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Return a ridge regression with an intercept from vectors of another space to the space of embeddings.

    Args:
        known: Vectors of known tokens (tokens, dimension).
        embeddings: Their embeddings (tokens, width).
        ridge: Penalty of the squared coefficients, relative to the mean variance of a dimension and the tokens.

    Returns:
        The coefficients (dimension, width) and the intercept (width,), float64.
    """
    known, embeddings = known.double(), embeddings.detach().cpu().double()
    center, mean = known.mean(0), embeddings.mean(0)
    known, embeddings = known - center, embeddings - mean
    square = known.T @ known
    penalty = ridge * square.diagonal().mean().clamp(min=1e-12)
    solution = torch.linalg.solve(square + penalty * torch.eye(len(square), dtype=square.dtype), known.T @ embeddings)
    return solution, mean - center @ solution
