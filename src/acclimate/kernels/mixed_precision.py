"""Weights in bfloat16 for the forward and backward of a step, the ones that are trained in float32.

Under autocast every micro-batch casts all weights, and all that lies between two matrix products stays in float32.
With weights in bfloat16 the weights are cast once a step, and what lies between takes half of the memory traffic.

A weight that stands in for a parameter while a step is read, and the memory that the parameter's gradient goes to.

The gradients of a step are as large as the weights. Fetched anew among the states of every step, and freed after it,
they leave holes that nothing else fits into: with lowered weights a base model grew by a third within twenty steps. So
a stand-in can keep that memory for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from acclimate.device import Precision, uses_bf16_weights

MASTER_ATTRIBUTE, BUFFER_ATTRIBUTE = "acclimate_master", "acclimate_room"
"""Attributes of a stand-in: the parameter whose gradient is wanted, and, if it is to stay, the memory for that."""


def shadow_copy(parameter: nn.Parameter, dtype: torch.dtype, reuse_grad_buffer: bool = False) -> nn.Parameter:
    """Return a frozen copy of a parameter in another precision.

    Args:
        parameter: What it stands in for, and holds.
        dtype: Of the copy.
        reuse_grad_buffer: Whether :func:`room_for_gradient` gives the same memory each time. Whoever wants to have a
            gradient
            after the step that follows has to copy it then.
    """
    copy = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
    setattr(copy, MASTER_ATTRIBUTE, parameter)  # which also keeps the id from being given to another
    if reuse_grad_buffer:
        setattr(copy, BUFFER_ATTRIBUTE, None)
    return copy


def master_weight(weight: Tensor) -> Tensor:
    """Return the parameter that a weight stands in for, or the weight itself."""
    found: Tensor = getattr(weight, MASTER_ATTRIBUTE, weight)
    return found


def grad_buffer(weight: Tensor) -> Tensor:
    """Return memory for the gradient of :func:`master`, with nothing of meaning in it."""
    parameter = master_weight(weight)
    if not hasattr(weight, BUFFER_ATTRIBUTE):
        return torch.empty_like(parameter, requires_grad=False)
    room: Tensor | None = getattr(weight, BUFFER_ATTRIBUTE)
    if room is None or room.shape != parameter.shape:
        room = torch.empty_like(parameter, requires_grad=False)
        setattr(weight, BUFFER_ATTRIBUTE, room)
    return room


def master_grad(weight: Tensor) -> tuple[Tensor, bool]:
    """Return the gradient of :func:`master`, and whether it was there; else what is in it has no meaning yet."""
    parameter = master_weight(weight)
    there = parameter.grad is not None
    if parameter.grad is None:
        parameter.grad = grad_buffer(weight)
    return parameter.grad, there


CHUNK = 1 << 19
"""Values that are cast at a time: their copy stays in the cache."""


class BF16Weights:
    """Swaps the float32 parameters of a model for bfloat16 copies, whose gradients go to the parameters in float32."""

    def __init__(self, model: nn.Module, reuse_grad_buffer: bool = False) -> None:
        """Swap nothing yet.

        Args:
            model: Whose weights are lowered.
            reuse_grad_buffer: Whether the memory of gradients is kept for the next step, which overwrites them.
        """
        self._model, self._keeps_room = model, reuse_grad_buffer
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
            copy = self._copies[key] = shadow_copy(parameter, torch.bfloat16, self._keeps_room)
        elif key not in fresh:
            with torch.no_grad():
                copy.copy_(parameter)
        fresh.add(key)
        if copy.requires_grad != parameter.requires_grad:
            copy.requires_grad_(parameter.requires_grad)
        if copy.requires_grad and not copy._post_accumulate_grad_hooks:
            copy.register_post_accumulate_grad_hook(_accumulate_in_master)
        return copy


def step_weights(
    model: nn.Module, precision: Precision, device: torch.device, reuse_grad_buffer: bool = False
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which forward and backward of a training step run: lowered weights where they pay.

    Args:
        model: That is trained.
        precision: Of the forward.
        device: Of the model.
        reuse_grad_buffer: As for :class:`LoweredWeights`. It pays where states of one micro-batch after the other are
            alive
            beside gradients. Where all states are there before any gradient, the two cannot share memory then.
    """
    return BF16Weights(model, reuse_grad_buffer) if uses_bf16_weights(precision, device) else nullcontext


def _accumulate_in_master(copy: Tensor) -> None:
    """Add the gradient of a copy to that of its parameter, in float32: a sum over micro-batches needs the digits."""
    if copy.grad is None:  # a lookup adds its rows itself
        return
    total, there = master_grad(copy)
    if there:
        _add_in_fp32(total, copy.grad)
    else:
        total.copy_(copy.grad)
    copy.grad = None


def _add_in_fp32(total: Tensor, part: Tensor) -> None:
    """Add bfloat16 to float32 some rows at a time, so that the float32 copy which torch makes of ``part`` is small."""
    rows = max(1, CHUNK // max(1, part[0].numel())) if part.dim() > 1 and len(part) else 0
    if not rows:
        total.add_(part)
        return
    for start in range(0, len(part), rows):
        total[start : start + rows].add_(part[start : start + rows])
