"""Soft-masking of attention heads and other units (DGA, Eq. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from acclimate.errors import UserError
from acclimate.models import UnitGroup
from acclimate.updates.base import UpdateRule


class SoftMask(UpdateRule):
    """Scale the learning of each unit by one minus its importance.

    Which weights a unit owns is said by :meth:`acclimate.models.UnitGroup.owned`.

    With ``on="update"``, the default, what the optimiser does to a weight is scaled: the weight moves (1 - I) of the
    way. That is what "constrain the update" means. With ``on="gradient"`` the gradient is scaled, as the equation is
    written; under Adam this does almost nothing, since a constant factor cancels between the first moment and the root
    of the second. The released code does the latter with AdamW. Weight decay, which is in no gradient, then moves a
    protected unit as far as any other.
    """

    def __init__(
        self,
        units: Mapping[str, Sequence[UnitGroup]],
        importance: Mapping[str, Tensor],
        on: Literal["update", "gradient"] = "update",
    ) -> None:
        """Prepare the factors.

        Args:
            units: The layers of each part of the model.
            importance: Normalised importances (layers, units) in [0, 1] of the same parts.
            on: What is scaled.

        Raises:
            UserError: If ``on`` is neither of the two, or an importance is not a finite number in [0, 1].
        """
        if on not in ("update", "gradient"):
            raise UserError(f"A soft mask works on 'update' or 'gradient', not on '{on}'.")
        self.on = on
        self.scaled: list[tuple[Tensor, Tensor]] = []
        for part, values in importance.items():
            if not bool(((values >= 0) & (values <= 1)).all()):
                raise UserError("Importances must be numbers between 0 and 1; normalise them first.")
            for layer, mine in zip(units[part], values, strict=True):
                self.scaled += [(weight, (1 - shares).to(weight)) for weight, shares in layer.owned(mine)]
        self._before: list[Tensor] = []

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
