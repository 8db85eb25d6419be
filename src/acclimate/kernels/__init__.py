"""Faster implementations of what plain torch computes, chosen once per model.

The rest of acclimate sees only the names below. ``ACCLIMATE_KERNELS=torch`` turns all of them off. Models then run on
plain torch, the reference that ``tests/kernels/test_equals_torch.py`` compares with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from acclimate.base.device import KERNELS_VARIABLE, Precision, call_libc, malloc_trim, tf32_products
from acclimate.base.errors import UserError
from acclimate.kernels.attention import FastDropout, eager_attention
from acclimate.kernels.gradients import BF16Weights, deferred_vocabulary_grads, faster_layer, is_pending
from acclimate.kernels.unpadding import Unpadded, cut_last_layer
from acclimate.kernels.varlen import find_kernel, varlen_attention, varlen_works

__all__ = ["Kernels", "Unpadded", "choose", "cut_last_layer", "eager_attention", "varlen_attention"]

KNOWN_CODE = ("transformers.models.", "transformers.activations", "torch.nn.modules.", "acclimate.")
"""Prefixes of known Python modules. Models with other layers, such as remote code, read padding and all positions."""
TRIM_SECONDS, TRIM_STEPS = 600.0, 16
"""Training returns free memory to the system when this much CPU time (of all cores) and this many steps have passed.
The next step has to fetch the memory again, which takes a second or more per gigabyte."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``, in bytes: free memory at the end of the heap beyond which it is returned, and the
size from which a block is mapped by itself and returned when it is freed."""
TRAINING_THRESHOLD, DEFAULT_THRESHOLD = 1 << 30, 1 << 25
"""Thresholds during training and otherwise. The latter is what glibc adapts to after the first large blocks."""


class MallocTrimCallback(TrainerCallback):
    """Keeps memory that a step has freed for the next step, and returns it to the system every few minutes.

    With glibc's defaults each step requests its large blocks from the system again, which costs a method with large
    graphs a fifth of its time. Without any trimming, a long training holds three times the memory that it uses.
    """

    def __init__(self) -> None:
        self._last, self._steps = time.process_time(), 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Keep freed memory from now on."""
        _set_thresholds(TRAINING_THRESHOLD)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Return free memory if it is time."""
        self._steps += 1
        if self._steps >= TRIM_STEPS and time.process_time() - self._last >= TRIM_SECONDS:
            malloc_trim()
            self._last, self._steps = time.process_time(), 0

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Return free memory and restore the default thresholds."""
        _set_thresholds(DEFAULT_THRESHOLD)
        malloc_trim()


def _set_thresholds(size: int) -> None:
    """Let the C library keep free blocks of up to ``size`` bytes, and twice as much at the end of the heap."""
    call_libc("mallopt", MMAP_THRESHOLD, size)
    call_libc("mallopt", TRIM_THRESHOLD, 2 * size - 1)  # the largest C int for the largest size


@dataclass(frozen=True)
class Kernels:
    """The kernels that one model runs with on one device.

    Attributes:
        device: Type of the device that they were chosen for.
        unpadding: Run all but attention without padding tokens.
        last_layer_cut: Compute the end of the last layer only at positions that something reads.
        eager_attention: Compute attention operation by operation, with a custom backward.
        varlen_attention: Let attention read texts without padding (:mod:`acclimate.kernels.varlen`).
        fast_dropout: Draw dropout masks with a counter-based generator.
        vocabulary_grads: Add gradients of embeddings and of the vocabulary projection straight to ``weight.grad``.
        bf16_weights: In bf16, run on bfloat16 copies of the weights instead of autocast's casts per micro-batch.
        keep_freed_memory: Keep memory that a step has freed for the next step.
    """

    device: str
    unpadding: bool = False
    last_layer_cut: bool = False
    eager_attention: bool = False
    varlen_attention: bool = False
    fast_dropout: bool = False
    vocabulary_grads: bool = False
    bf16_weights: bool = False
    keep_freed_memory: bool = False

    def replace_layers(self, model: nn.Module) -> None:
        """Replace submodules of ``model`` with faster ones that keep parameters, buffers, hooks and attributes."""
        made: dict[int, nn.Module] = {}  # a module that is used in two places stays shared
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                kind = None if child is None else self._faster_layer(child)
                if child is None or kind is None:
                    continue
                if id(child) not in made:
                    faster = made[id(child)] = kind.__new__(kind)
                    faster.__dict__.update(child.__dict__)
                setattr(parent, name, made[id(child)])

    def _faster_layer(self, module: nn.Module) -> type[nn.Module] | None:
        if self.fast_dropout and type(module) is nn.Dropout:
            return FastDropout
        return faster_layer(module) if self.vocabulary_grads else None

    def step_context(
        self, model: nn.Module, precision: Precision, reuse_grad_buffer: bool = False
    ) -> Callable[[], AbstractContextManager[None]]:
        """Return a factory of contexts in which the forward and backward passes of a step run.

        When a context ends without an error, the gradients of the step are complete.

        Args:
            model: The model in training.
            precision: Precision of the forward pass.
            reuse_grad_buffer: See :class:`~acclimate.kernels.gradients.BF16Weights`.
        """
        lower = precision == "bf16" and self.bf16_weights
        weights: Callable[[], AbstractContextManager[None]] = (
            BF16Weights(model, reuse_grad_buffer) if lower else nullcontext
        )

        @contextmanager
        def step() -> Iterator[None]:
            with tf32_products(precision == "fp32"), weights(), deferred_vocabulary_grads():
                yield

        return step

    @staticmethod
    def gradient_is_pending(weight: torch.Tensor) -> bool:
        """Return whether the gradient of a weight may still change when the context of a step ends."""
        return is_pending(weight)

    def for_shards(self) -> Kernels:
        """Return these kernels without those that need whole weights or keep the memory of gathered ones."""
        return replace(self, vocabulary_grads=False, bf16_weights=False, keep_freed_memory=False)

    def without_padding(self, device: torch.device) -> Kernels | None:
        """Return these kernels with attention that reads texts without padding; None if the device has none."""
        works = self.device == "cuda" and _are_wanted() and varlen_works(device)
        return replace(self, unpadding=True, varlen_attention=True) if works else None

    def describe_attention(self, dtype: torch.dtype, width: int) -> str:
        """Return how attention is computed in a type with heads of a width, for the log."""
        kernel = find_kernel(dtype, width, None) if self.varlen_attention else None
        if kernel is not None:
            return f"{kernel} kernel, texts without padding"
        return "operation by operation" if self.eager_attention else "scaled_dot_product_attention, padded rows"

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks that a ``Trainer`` needs to run with these kernels."""
        return [MallocTrimCallback()] if self.keep_freed_memory else []


def choose(model: nn.Module, device: torch.device, *, tokenwise: bool, cuttable: bool) -> Kernels:
    """Choose the kernels for a model on a device.

    Args:
        model: The model.
        device: The device that it will run on.
        tokenwise: Whether its architecture processes each token separately except in attention.
        cuttable: Whether its architecture supports :func:`cut_last_layer`.

    Raises:
        UserError: If ``ACCLIMATE_KERNELS`` is neither ``auto`` nor ``torch``.
    """
    if not _are_wanted():
        return Kernels(device.type)
    if device.type not in ("cpu", "cuda"):
        return Kernels(device.type, keep_freed_memory=True)
    known = all(type(module).__module__.startswith(KNOWN_CODE) for module in model.modules())
    if device.type == "cuda":
        varlen = tokenwise and known and varlen_works(device)
        return Kernels(
            device.type,
            unpadding=varlen,
            last_layer_cut=cuttable and known,
            varlen_attention=varlen,
            keep_freed_memory=True,
        )
    return Kernels(
        device.type,
        unpadding=tokenwise and known,
        last_layer_cut=cuttable and known,
        eager_attention=True,
        fast_dropout=True,
        vocabulary_grads=True,
        bf16_weights=True,
        keep_freed_memory=True,
    )


def _are_wanted() -> bool:
    """Return whether the environment lets kernels replace plain torch."""
    wanted = os.environ.get(KERNELS_VARIABLE) or "auto"
    if wanted not in ("auto", "torch"):
        raise UserError(f"{KERNELS_VARIABLE} is '{wanted}'; set it to auto or torch.")
    return wanted == "auto"
