"""Soft-masking of attention heads (DGA, Eq. 9)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.backbone import HeadLayer, head_rows
from acclimate.errors import UserError
from acclimate.updates.base import UpdateRule


class SoftMask(UpdateRule):
    """Scale the learning of each head by one minus its importance.

    A head owns the rows of W_q, W_k and W_v (and of their biases) that compute its part, and the columns of W_o that
    read it. The bias of W_o belongs to no head and is left alone.

    With ``on="update"``, the default, what the optimiser does to a weight is scaled: the weight moves (1 - I) of the
    way. That is what "constrain the update" means. With ``on="gradient"`` the gradient is scaled, as the equation is
    written; under Adam this does almost nothing, since a constant factor cancels between the first moment and the root
    of the second. The released code does the latter with AdamW.
    """

    def __init__(
        self, layers: list[HeadLayer], importance: Tensor, on: Literal["update", "gradient"] = "update"
    ) -> None:
        """Prepare the factors.

        Args:
            layers: The attention layers of the model.
            importance: Normalised importances (layers, heads) in [0, 1].
            on: What is scaled.

        Raises:
            UserError: If ``on`` is neither of the two, or an importance is not a finite number in [0, 1].
        """
        if on not in ("update", "gradient"):
            raise UserError(f"A soft mask works on 'update' or 'gradient', not on '{on}'.")
        if not bool(((importance >= 0) & (importance <= 1)).all()):
            raise UserError("Head importances must be numbers between 0 and 1; normalise them first.")
        self.on = on
        self.scaled: list[tuple[Tensor, Tensor]] = []
        for layer, values in zip(layers, importance, strict=True):
            kept: dict[int, tuple[nn.Linear, Tensor]] = {}
            for projection in layer.inputs:  # the three parts of a fused layer share one parameter
                linear, rows = kept.get(id(projection.linear), (projection.linear, 0))
                kept[id(linear)] = (linear, rows + head_rows(values, projection, layer.width))
            for linear, rows in kept.values():
                self._add(linear.weight, 1 - rows[:, None])
                if linear.bias is not None:
                    self._add(linear.bias, 1 - rows)
            columns = values.repeat_interleave(layer.width)
            self._add(layer.output.weight, 1 - columns[None, :])
        self._before: list[Tensor] = []

    def _add(self, parameter: Tensor, factor: Tensor) -> None:
        self.scaled.append((parameter, factor.to(parameter)))

    @torch.no_grad()
    def before_step(self) -> None:
        """Scale the gradients, or remember the weights."""
        if self.on == "gradient":
            for parameter, factor in self.scaled:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        else:
            self._before = [parameter.detach().clone() for parameter, _ in self.scaled]

    @torch.no_grad()
    def after_step(self) -> None:
        """Take back the share of the step that the importance forbids."""
        for (parameter, factor), before in zip(self.scaled, self._before, strict=False):
            # From the old value on, so that a factor of zero leaves it exactly as it was.
            parameter.copy_(before + factor * (parameter - before))
        self._before = []
