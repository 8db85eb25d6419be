"""What a training step would cost the host of an accelerator, counted on the emulated one.

A :class:`Ledger` sees every operator of the forward and the backward pass on tensors of the emulated accelerator:
launches, values that the host waits for, copies between host and device, and the kernel of every attention call. The
kernels of attention that only exist on accelerators are replaced by a reference on the CPU.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.accelerator import Accelerator, _tensors, emulated
from tests.tiny import VOCABULARY

aten = torch.ops.aten
SHAPE_DEPENDS_ON_VALUES = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.bincount.default: "bincount",
    aten.equal.default: "equal",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operators whose result the host has to wait for."""
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
VARLEN = (aten._flash_attention_forward.default, aten._efficient_attention_forward.default)
VIEWS = {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten._unsafe_view.default}


@dataclass
class Ledger(TorchDispatchMode):
    """Counts operators on the emulated accelerator while it is entered.

    Attributes:
        accelerator: The emulated accelerator.
        vocabulary: Rows of the table of word embeddings.
        operators: Launches by name. Views are none, and attention is one forward and one backward.
        stops: Values that the host waited for, by operator.
        copies: Copies by direction, ``"to device"`` or ``"to host"``, and whether the host waits for them.
        attention: Calls of attention by kernel: ``"flash"``, ``"mask"`` and ``"varlen"``.
        read: Tokens of each look-up in the table of word embeddings, padding included.
    """

    accelerator: Accelerator
    vocabulary: int = len(VOCABULARY)
    operators: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    copies: Counter[tuple[str, bool]] = field(default_factory=Counter)
    attention: Counter[str] = field(default_factory=Counter)
    read: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        held = [self.accelerator.holds(tensor) for tensor in _tensors((args, kwargs))]
        result = func(*args, **kwargs)
        if self.accelerator.uncounted or not any(held):
            return result
        if func in VARLEN:
            self.attention["varlen"] += 1
        if func is aten.embedding.default and len(args[0]) == self.vocabulary:
            self.read.append(args[1].numel())
        if func in SHAPE_DEPENDS_ON_VALUES:
            self.stops[SHAPE_DEPENDS_ON_VALUES[func]] += 1
        elif func in INDEXED and any(part is not None and part.dtype == torch.bool for part in args[1]):
            self.stops["boolean index"] += 1
        is_view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
        if not is_view and func not in VIEWS:
            self.operators[func._overloadpacket.__name__] += 1
        if func is not aten.copy_.default:
            self.accelerator._register(result)
        return result

    @property
    def launched(self) -> int:
        """Number of launches."""
        return sum(self.operators.values())

    @property
    def waits(self) -> int:
        """How often the host waits for the device: for values, and for copies that it does not leave to the device."""
        return sum(self.stops.values()) + sum(times for (_, waits), times in self.copies.items() if waits)

    def reset(self) -> None:
        """Forget what was counted."""
        for counter in (self.operators, self.stops, self.copies, self.attention):
            counter.clear()


class _OneKernel(torch.autograd.Function):
    """Attention as one operator forward and one backward."""

    @staticmethod
    def forward(ctx: Any, ledger: Ledger, kernel: Any, query: Tensor, key: Tensor, value: Tensor, options: Any) -> Any:
        ctx.ledger = ledger
        with torch.enable_grad(), ledger.accelerator.not_counted():
            parts = [part.detach().requires_grad_() for part in (query, key, value)]
            output = kernel(*parts, **options)
        ctx.parts, ctx.output = parts, output
        ledger.operators["attention"] += 1
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.ledger.operators["attention"] += 1
        with ctx.ledger.accelerator.not_counted():
            found = torch.autograd.grad(ctx.output, ctx.parts, gradients[0])
        ctx.ledger.accelerator._register(found)
        return None, None, *found, None


@contextlib.contextmanager
def counted(bf16: bool = True) -> Iterator[Ledger]:
    """Emulate an accelerator and count what happens on it until the end of the block."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def count_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        ledger.attention["flash" if attn_mask is None else "mask"] += 1
        if torch.is_autocast_enabled("cpu"):  # as emulated: it casts what is not in its type, and the gradients back
            type_ = torch.get_autocast_dtype("cpu")
            ledger.operators["_to_copy"] += 2 * sum(part.dtype != type_ for part in (query, key, value))
        if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool:
            ledger.operators["mask"] += 3  # zeros, not, fill
        options |= {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
        output = _OneKernel.apply(ledger, attention, query, key, value, options)
        ledger.accelerator._register(output)
        return output

    with emulated(bf16=bf16) as accelerator, pytest.MonkeyPatch.context() as patch:
        ledger = Ledger(accelerator)
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", count_attention)
        patch.setattr(accelerator, "copied", ledger.copies)
        clip = torch.nn.utils.clip_grad._clip_grads_with_norm_

        def clip_in_place(*args: Any, **options: Any) -> None:
            # torch groups tensors by their true device, the CPU, and moves the factor there.
            with pytest.MonkeyPatch.context() as within:
                within.setattr(accelerator, "copied", Counter())
                clip(*args, **options)

        patch.setattr(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", clip_in_place)
        with ledger:
            yield ledger
