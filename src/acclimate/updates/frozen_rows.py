"""Rows of a weight that no step may change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acclimate.updates.base import UpdateRule


class FreezeOtherRows(UpdateRule):
    """Train some rows of a weight only; the others keep their values to the bit, under weight decay too."""

    def __init__(self, weight: nn.Parameter, rows: Sequence[int]) -> None:
        """Remember the values.

        Args:
            weight: (rows, ...).
            rows: The rows that train.
        """
        self.weight = weight
        self.others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        self.others[list(rows)] = False
        self.values: Tensor = weight.detach()[self.others].clone()

    @torch.no_grad()
    def after_backward(self) -> None:
        """Clear the gradients of the other rows, or they would count when gradients are clipped by their norm.

        A hook on the weight would not do: embedding lookups and lowered weights add to ``grad`` themselves.
        """
        if self.weight.grad is not None:
            self.weight.grad[self.others] = 0

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the other rows back."""
        self.weight[self.others] = self.values
