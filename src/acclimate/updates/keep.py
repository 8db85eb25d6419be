"""Rows of a weight that no step may change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acclimate.updates.base import UpdateRule


class TrainRows(UpdateRule):
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
        keep = (~self.others).to(weight.dtype).view(-1, *[1] * (weight.dim() - 1))
        # Without it the gradients of the other rows would count when gradients are clipped by their norm.
        weight.register_hook(lambda gradient: gradient * keep)

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the other rows back."""
        self.weight[self.others] = self.values
