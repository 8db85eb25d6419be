"""Mixed precision with bfloat16 copies of float32 master weights.

Under autocast every micro-batch casts all weights, and everything between two matrix products stays in float32. With
bfloat16 copies the weights are cast once per step, and activations take half the memory traffic. Gradients are summed
in float32, in the master weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

MASTER_ATTRIBUTE, BUFFER_ATTRIBUTE = "acclimate_master", "acclimate_grad_buffer"
"""Attributes of a copy: its master weight, and the memory that is kept for the gradient of that, if any."""
CHUNK = 1 << 19
"""Values cast at a time, so that their copy stays in the cache."""


def shadow_copy(parameter: nn.Parameter, dtype: torch.dtype, reuse_grad_buffer: bool = False) -> nn.Parameter:
    """Return a frozen copy of a master weight in another precision.

    Args:
        parameter: The master weight. The copy keeps a reference to it.
        dtype: Type of the copy.
        reuse_grad_buffer: Whether :func:`grad_buffer` returns the same memory each time. A gradient that is needed
            after the next step must then be copied first.
    """
    copy = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
    setattr(copy, MASTER_ATTRIBUTE, parameter)  # the reference also keeps its id from being reused
    if reuse_grad_buffer:
        setattr(copy, BUFFER_ATTRIBUTE, None)
    return copy


def master_weight(weight: Tensor) -> Tensor:
    """Return the master weight of a shadow copy, or the weight itself if it is not a copy."""
    master: Tensor = getattr(weight, MASTER_ATTRIBUTE, weight)
    return master


def grad_buffer(weight: Tensor) -> Tensor:
    """Return uninitialised memory for the gradient of :func:`master_weight`."""
    master = master_weight(weight)
    if not hasattr(weight, BUFFER_ATTRIBUTE):
        return torch.empty_like(master, requires_grad=False)
    buffer: Tensor | None = getattr(weight, BUFFER_ATTRIBUTE)
    if buffer is None or buffer.shape != master.shape:
        buffer = torch.empty_like(master, requires_grad=False)
        setattr(weight, BUFFER_ATTRIBUTE, buffer)
    return buffer


def master_grad(weight: Tensor) -> tuple[Tensor, bool]:
    """Return the gradient tensor of :func:`master_weight`, and whether it holds values or is uninitialised."""
    master = master_weight(weight)
    initialised = master.grad is not None
    if master.grad is None:
        master.grad = grad_buffer(weight)
    return master.grad, initialised


class BF16Weights:
    """Swaps the float32 parameters of a model for bfloat16 copies whose gradients go to the float32 parameters."""

    def __init__(self, model: nn.Module, reuse_grad_buffer: bool = False) -> None:
        """Prepare; nothing is swapped yet.

        Args:
            model: The model.
            reuse_grad_buffer: Whether the next step overwrites the gradient memory of this one. Gradients are as large
                as the weights; allocated anew among the activations of each step, they fragment the heap, and a base
                model grew by a third within twenty steps. It does not pay where all activations exist before the
                first gradient, since the two can then share memory.
        """
        self._model, self._reuse = model, reuse_grad_buffer
        self._copies: dict[int, nn.Parameter] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the model on the copies; ``backward()`` inside adds to ``grad`` of the float32 parameters."""
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
        """Return the up-to-date copy of a parameter; tied weights share theirs."""
        key = id(parameter)
        copy = self._copies.get(key)
        if copy is None or copy.shape != parameter.shape:
            copy = self._copies[key] = shadow_copy(parameter, torch.bfloat16, self._reuse)
        elif key not in fresh:
            with torch.no_grad():
                copy.copy_(parameter)
        fresh.add(key)
        if copy.requires_grad != parameter.requires_grad:
            copy.requires_grad_(parameter.requires_grad)
        if copy.requires_grad and not copy._post_accumulate_grad_hooks:
            copy.register_post_accumulate_grad_hook(_accumulate_in_master)
        return copy


def _accumulate_in_master(copy: Tensor) -> None:
    """Move the gradient of a copy to its master weight; bfloat16 is too coarse to sum over micro-batches."""
    if copy.grad is None:  # an embedding or projection that adds its gradient itself
        return
    total, initialised = master_grad(copy)
    if initialised:
        _add_in_fp32(total, copy.grad)
    else:
        total.copy_(copy.grad)
    copy.grad = None


def _add_in_fp32(total: Tensor, part: Tensor) -> None:
    """Add bfloat16 to float32 some rows at a time, because torch makes a float32 copy of what it adds."""
    rows = max(1, CHUNK // max(1, part[0].numel())) if part.dim() > 1 and len(part) else 0
    if not rows:
        total.add_(part)
        return
    for start in range(0, len(part), rows):
        total[start : start + rows].add_(part[start : start + rows])
