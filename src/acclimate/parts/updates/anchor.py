"""Weights that are pulled to their values at the start of the training, or to other ones: L2-SP and EWC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from acclimate.parts.updates.rules import UpdateRule, group_by_size, local_shard


class PullToStart(UpdateRule):
    """Add strength / 2 x sum_i f_i (w_i - w0_i)^2 to the loss, over the weights that train; w0 are those at the start.

    Without importance, f is 1: L2-SP (Li et al., ICML 2018). With the diagonal Fisher information of a text as f, it
    is EWC (Kirkpatrick et al., PNAS 2017). As in both papers it is a term of the loss: its gradient counts towards the
    norm for clipping and goes through the moments of the optimizer. It needs a copy of the weights, and another one of
    the importance. With EWC over several domains, w0 are other weights than those at the start.
    """

    needs_whole_weights: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        importance: Mapping[str, Tensor] | None = None,
        anchors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Copy the weights that train.

        Args:
            model: The model, before its training; its weights may be sharded later.
            strength: Factor of the term.
            importance: f, in the shape of each weight, by its name; None for ones, 0 for weights that are missing.
            anchors: w0 instead of the weights at the start, by name.
        """
        self.strength, self._model = strength, model
        self._start = {
            name: (
                weight.detach().clone() if anchors is None else anchors[name],
                None if importance is None else importance[name],
            )
            for name, weight in model.named_parameters()
            if weight.requires_grad and (importance is None or name in importance)
        }

    @cached_property
    def pulled(self) -> list[tuple[Tensor, tuple[Tensor, Tensor | None]]]:
        """The weights, and the local shards of their start and importance.

        They are divided when they are first needed, since sharding a model replaces its weights.
        """
        found: list[tuple[Tensor, tuple[Tensor, Tensor | None]]] = []
        for name, (start, importance) in self._start.items():
            weight = self._model.get_parameter(name)
            shards = _shard_like(weight, start), None if importance is None else _shard_like(weight, importance)
            found.append((weight, shards))
        self._start = {}
        return found

    @torch.no_grad()
    def after_backward(self) -> None:
        """Add the gradient of the term; weights that the loss does not read have none, and do not move."""
        for group in group_by_size([pair for pair in self.pulled if pair[0].grad is not None]):
            weights, starts, importance = zip(*((weight, *shards) for weight, shards in group), strict=True)
            moved = torch._foreach_sub([local_shard(weight) for weight in weights], starts)
            if importance[0] is not None:
                torch._foreach_mul_(moved, importance)
            torch._foreach_add_([local_shard(weight.grad) for weight in weights], moved, alpha=self.strength)


def _shard_like(weight: Tensor, whole: Tensor) -> Tensor:
    """Return the part of a tensor that belongs to the local shard of a weight, on its device."""
    whole = whole.to(weight.device, weight.dtype)
    if not isinstance(weight, DTensor):
        return whole
    shards = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
    return shards.to_local().clone()  # otherwise it would keep the whole tensor
