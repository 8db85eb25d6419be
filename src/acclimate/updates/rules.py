"""Update rules: hooks around the optimizer step, soft masking by importance (DGA, Eq. 9), and frozen rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from acclimate.errors import UserError
from acclimate.models import UnitGroup


class UpdateRule:
    """Hooks that the engine calls around every optimizer step; by default they do nothing."""

    needs_whole_weights: ClassVar[bool] = True
    """Whether the weights must not be sharded among processes."""

    def after_backward(self) -> None:
        """Run when the gradients of the step are complete, before they are clipped."""

    def before_step(self) -> None:
        """Run on the final gradients: accumulated, unscaled and clipped."""

    def after_step(self) -> None:
        """Run after the optimizer has updated the weights, weight decay included."""

    def delta_factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and the factors of their change that replace the rule where a low-rank adapter trains.

        The weights themselves are frozen then; see :meth:`acclimate.models.lora.LowRankAdapter.mask`.
        """
        return []


class SoftMask(UpdateRule):
    """Scale the learning of each unit by one minus its importance (Eq. 9).

    :meth:`acclimate.models.UnitGroup.spread_over_parameters` defines which weights belong to a unit.

    With ``on="update"``, the default, a weight moves (1 - I) of the way that the optimizer moved it: the update is
    constrained, as the paper says. With ``on="gradient"`` the gradient is scaled, as the equation is written and as
    the released code does with AdamW. Under Adam this has almost no effect, since a constant factor cancels between
    the first moment and the root of the second, and weight decay still moves a protected unit as far as any other.
    """

    def __init__(
        self,
        units: Mapping[str, Sequence[UnitGroup]],
        importance: Mapping[str, Tensor],
        on: Literal["update", "gradient"] = "update",
    ) -> None:
        """Compute the factor of every weight.

        Args:
            units: Layers of each part of the model.
            importance: Normalized importance (layers, units) of the same parts, in [0, 1].
            on: What is scaled.

        Raises:
            UserError: If ``on`` has another value, or an importance is not a finite number in [0, 1].
        """
        if on not in ("update", "gradient"):
            raise UserError(f"A soft mask scales the 'update' or the 'gradient', not '{on}'.")
        self.on = on
        self.scaled: list[tuple[Tensor, Tensor]] = []
        for part, values in importance.items():
            if not bool(((values >= 0) & (values <= 1)).all()):
                raise UserError("Importance values must be numbers between 0 and 1; normalize them first.")
            for layer, layer_importance in zip(units[part], values, strict=True):
                self.scaled += [
                    (weight, (1 - share).to(weight.device))
                    for weight, share in layer.spread_over_parameters(layer_importance)
                ]
        self._before: list[Tensor] = []

    def delta_factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return the factors of the weights that are matrices; with an adapter nothing else changes.

        Raises:
            UserError: If the gradient is to be scaled: no gradient of an adapter belongs to single weights.
        """
        if self.on == "gradient":
            raise UserError("An adapter can scale the update of weights, not their gradient; use mask_on=update.")
        return [(weight, factor) for weight, factor in self.scaled if factor.dim() == 2]

    @torch.no_grad()
    def before_step(self) -> None:
        """Scale the gradients, or store the weights."""
        if self.on == "gradient":
            for parameter, factor in self.scaled:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        else:
            self._before = [parameter.detach().clone() for parameter, _ in self.scaled]

    @torch.no_grad()
    def after_step(self) -> None:
        """Undo the masked share of the update."""
        for (parameter, factor), before in zip(self.scaled, self._before, strict=False):
            # Computed from the old value, so that a factor of zero restores it bit for bit.
            parameter.copy_(before + factor * (parameter - before))
        self._before = []


class FreezeOtherRows(UpdateRule):
    """Train some rows of a weight; the others keep their exact values, under weight decay too."""

    def __init__(self, weight: nn.Parameter, rows: Sequence[int]) -> None:
        """Store the values of the other rows.

        Args:
            weight: (rows, ...).
            rows: Indices of the rows that train.
        """
        self.weight = weight
        others = torch.ones(len(weight), dtype=torch.bool)
        others[list(rows)] = False
        self.others = others.nonzero()[:, 0].to(weight.device)  # a mask would make the host wait for the device
        self.values: Tensor = weight.detach()[self.others].clone()

    @torch.no_grad()
    def after_backward(self) -> None:
        """Zero the gradients of the other rows, so that they do not count towards the norm for clipping.

        A gradient hook on the weight would not see them all: kernels add to ``grad`` directly.
        """
        if self.weight.grad is not None:
            self.weight.grad.index_fill_(0, self.others, 0)

    @torch.no_grad()
    def after_step(self) -> None:
        """Restore the other rows."""
        self.weight.index_copy_(0, self.others, self.values)
