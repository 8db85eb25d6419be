"""Balanced factorization of low-rank weights in the course of a training, with new moments (Glentis et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.base.device import in_full
from acclimate.parts.updates.rules import UpdateRule

SMALLEST = 1e-6
"""Share of the largest singular value up to which a component counts as empty."""


class Refactorization(UpdateRule):
    """Replace the factors of products B A by their singular value decomposition, every so many steps.

    With B A = U S V, the new factors are U S^0.5 and S^0.5 V: the product stays the same, and both factors of each
    component have the same norm. Their moments in the optimizer start anew, since they belong to other directions now
    (Glentis et al., "Scalable parameter and memory efficient pretraining for LLM", 2025). The count of steps, by which
    Adam corrects the bias of its moments, starts anew as well; otherwise the next step would be three times as long.
    """

    def __init__(self, factors: Sequence[tuple[nn.Parameter, nn.Parameter]], every: int) -> None:
        """Set up the rule.

        Args:
            factors: A (r, columns) and B (rows, r) of each product; those that do not train stay as they are.
            every: Number of steps.
        """
        self.factors = [pair for pair in factors if all(factor.requires_grad for factor in pair)]
        self.every = every

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update the factors; after every ``every``-th step, factor the products anew."""
        super().step(optimizer, take)
        if (self.steps_taken + 1) % self.every == 0:
            for a, b in self.factors:
                for factor, balanced in zip((a, b), balance_factors(a, b), strict=True):
                    factor.copy_(balanced)
                    optimizer.state.pop(factor, None)


def balance_factors(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of the same product whose components are its singular vectors, with equal norms.

    The singular values come from a small matrix (r, r), between the orthogonal parts of both factors. A component
    without a value keeps a row of A, of the usual size, and gets a column of zeros in B; with zeros in both, it could
    never learn again.

    Args:
        a: A (r, columns).
        b: B (rows, r).

    Returns:
        New A and B, in the types of the old ones.
    """
    (right, upper), (left, lower) = torch.linalg.qr(in_full(a).T), torch.linalg.qr(in_full(b))
    u, values, v = torch.linalg.svd(lower @ upper.T, full_matrices=False)
    if not values[0] > 0:
        return a, b
    root = torch.where(values > SMALLEST * values[0], values, values.mean()).sqrt()
    made_a, made_b = torch.zeros_like(a), torch.zeros_like(b)  # a product may have fewer components than r
    made_a[: len(values)] = (root[:, None] * (v @ right.T)).to(a.dtype)
    made_b[:, : len(values)] = ((left @ u) * (values / root)).to(b.dtype)
    return made_a, made_b
