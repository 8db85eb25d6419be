"""Weights in bfloat16 for the forward and backward of a step, the ones that are trained in float32.

Under autocast every micro-batch casts all weights, and all that lies between two matrix products stays in float32.
With weights in bfloat16 the weights are cast once a step, and what lies between takes half of the memory traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from acclimate.backbone.device import Precision, lowers_weights
from acclimate.backbone.stand_in import gradient_of, stand_in

CHUNK = 1 << 19
"""Values that are cast at a time: their copy stays in the cache."""


class LoweredWeights:
    """Swaps the float32 parameters of a model for bfloat16 copies, whose gradients go to the parameters in float32."""

    def __init__(self, model: nn.Module, keeps_room: bool = False) -> None:
        """Swap nothing yet.

        Args:
            model: Whose weights are lowered.
            keeps_room: Whether the memory of gradients is kept for the next step, which overwrites them.
        """
        self._model, self._keeps_room = model, keeps_room
        self._copies: dict[int, nn.Parameter] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Read the model with lowered weights; ``backward()`` inside adds to ``grad`` of the float32 parameters."""
        swapped: list[tuple[nn.Module, str, nn.Parameter]] = []
        fresh: set[int] = set()
        try:
            for module in self._model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and parameter.dtype == torch.float32:
                        swapped.append((module, name, parameter))
                        module._parameters[name] = self._copy(parameter, fresh)
            yield
        finally:
            for module, name, parameter in swapped:
                module._parameters[name] = parameter

    def _copy(self, parameter: nn.Parameter, fresh: set[int]) -> nn.Parameter:
        """Return the copy of a parameter; tied weights share theirs."""
        key = id(parameter)
        copy = self._copies.get(key)
        if copy is None or copy.shape != parameter.shape:
            copy = self._copies[key] = stand_in(parameter, torch.bfloat16, self._keeps_room)
        elif key not in fresh:
            with torch.no_grad():
                copy.copy_(parameter)
        fresh.add(key)
        if copy.requires_grad != parameter.requires_grad:
            copy.requires_grad_(parameter.requires_grad)
        if copy.requires_grad and not copy._post_accumulate_grad_hooks:
            copy.register_post_accumulate_grad_hook(_hand_over)
        return copy


def weights_for_a_step(
    model: nn.Module, precision: Precision, device: torch.device, keeps_room: bool = False
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which forward and backward of a training step run: lowered weights where they pay.

    Args:
        model: That is trained.
        precision: Of the forward.
        device: Of the model.
        keeps_room: As for :class:`LoweredWeights`. It pays where states of one micro-batch after the other are alive
            beside gradients. Where all states are there before any gradient, the two cannot share memory then.
    """
    return LoweredWeights(model, keeps_room) if lowers_weights(precision, device) else nullcontext


def _hand_over(copy: Tensor) -> None:
    """Add the gradient of a copy to that of its parameter, in float32: a sum over micro-batches needs the digits."""
    if copy.grad is None:  # a lookup adds its rows itself
        return
    total, there = gradient_of(copy)
    if there:
        _add(total, copy.grad)
    else:
        total.copy_(copy.grad)
    copy.grad = None


def _add(total: Tensor, part: Tensor) -> None:
    """Add bfloat16 to float32 some rows at a time, so that the float32 copy which torch makes of ``part`` is small."""
    rows = max(1, CHUNK // max(1, part[0].numel())) if part.dim() > 1 and len(part) else 0
    if not rows:
        total.add_(part)
        return
    for start in range(0, len(part), rows):
        total[start : start + rows].add_(part[start : start + rows])
