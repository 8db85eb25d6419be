"""A weight that stands in for a parameter while a step is read, and the memory that the parameter's gradient goes to.

The gradients of a step are as large as the weights. Fetched anew among the states of every step, and freed after it,
they leave holes that nothing else fits into: with lowered weights a base model grew by a third within twenty steps. So
a stand-in can keep that memory for the next step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MASTER, ROOM = "acclimate_master", "acclimate_room"
"""Attributes of a stand-in: the parameter whose gradient is wanted, and, if it is to stay, the memory for that."""


def stand_in(parameter: nn.Parameter, dtype: torch.dtype, keeps_room: bool = False) -> nn.Parameter:
    """Return a frozen copy of a parameter in another precision.

    Args:
        parameter: What it stands in for, and holds.
        dtype: Of the copy.
        keeps_room: Whether :func:`room_for_gradient` gives the same memory each time. Whoever wants to have a gradient
            after the step that follows has to copy it then.
    """
    copy = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
    setattr(copy, MASTER, parameter)  # which also keeps the id from being given to another
    if keeps_room:
        setattr(copy, ROOM, None)
    return copy


def master(weight: Tensor) -> Tensor:
    """Return the parameter that a weight stands in for, or the weight itself."""
    found: Tensor = getattr(weight, MASTER, weight)
    return found


def room_for_gradient(weight: Tensor) -> Tensor:
    """Return memory for the gradient of :func:`master`, with nothing of meaning in it."""
    parameter = master(weight)
    if not hasattr(weight, ROOM):
        return torch.empty_like(parameter, requires_grad=False)
    room: Tensor | None = getattr(weight, ROOM)
    if room is None or room.shape != parameter.shape:
        room = torch.empty_like(parameter, requires_grad=False)
        setattr(weight, ROOM, room)
    return room


def gradient_of(weight: Tensor) -> tuple[Tensor, bool]:
    """Return the gradient of :func:`master`, and whether it was there; else what is in it has no meaning yet."""
    parameter = master(weight)
    there = parameter.grad is not None
    if parameter.grad is None:
        parameter.grad = room_for_gradient(weight)
    return parameter.grad, there
