"""Embedding lookups whose gradient touches only the rows that were read.

The gradient of ``nn.Embedding`` is a table of zeros as large as the vocabulary with a few rows filled in, made and
added up anew for every micro-batch. For a small model that costs as much as a layer. Here the rows are added straight
to the gradient that is there, in training at the end of a step (:mod:`acclimate.backbone.tables`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from acclimate.backbone.tables import add_rows


class _Lookup(torch.autograd.Function):
    """Take rows of a weight; the backward adds to ``grad`` of that weight and reports no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        """Return (..., width) for ids (...)."""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """Add the gradient of each row, in the precision of the gradient that collects it."""
        (ids,) = ctx.saved_tensors
        flat, rows = ids.reshape(-1), gradients[0].reshape(-1, gradients[0].shape[-1])
        if ctx.padding is not None:
            real = flat != ctx.padding
            flat, rows = flat[real], rows[real]
        add_rows(ctx.weight, flat, rows)
        return None, None, None


def collects_by_row(weight: Tensor) -> bool:
    """Say whether the gradient of a weight, wanted now, can be added straight to ``grad``; it may have moved since."""
    return weight.device.type == "cpu" and weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


class RowEmbedding(nn.Embedding):
    """``nn.Embedding`` with the gradient above; it is for leaf weights and ``backward()``, not ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Look rows up."""
        if collects_by_row(self.weight):
            return _Lookup.apply(self.weight, input, self.padding_idx)
        return super().forward(input)


def spare_embeddings(model: nn.Module) -> None:
    """Let the plain embeddings of a model on a CPU collect their gradients by row; all else stays as it is."""
    for module in model.modules():
        plain = type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq
        if plain and not module.sparse and module.weight.device.type == "cpu":
            module.__class__ = RowEmbedding
