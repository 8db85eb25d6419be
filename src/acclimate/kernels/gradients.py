"""Accumulation of weight gradients: float32 master weights, embeddings and the vocabulary projection.

**bfloat16 copies of the weights.** Under autocast every micro-batch casts all weights, and everything between two
matrix products stays in float32. With bfloat16 copies the weights are cast once per step, and activations take half
the memory traffic. Gradients are summed in float32, in the master weights.

**Embeddings and vocabulary projection.** The gradient of a layer with one row per word is as large as a small model.
Autograd allocates it for each micro-batch: for ``nn.Embedding``, a table of zeros with a few rows filled in. The data
that determine it are small: the gradients of the rows that were looked up, or the logit gradients and hidden states at
a few positions. Here these are collected until the end of a step, or until they take as much memory as the gradient,
and then added to ``weight.grad``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MASTER_ATTRIBUTE, BUFFER_ATTRIBUTE = "acclimate_master", "acclimate_grad_buffer"
"""Attributes of a copy: its master weight, and the buffer that is reused for the gradient of the master weight."""
CAST_CHUNK = 1 << 19
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
    """Return uninitialized memory for the gradient of :func:`master_weight`."""
    master = master_weight(weight)
    if not hasattr(weight, BUFFER_ATTRIBUTE):
        return torch.empty_like(master, requires_grad=False)
    buffer: Tensor | None = getattr(weight, BUFFER_ATTRIBUTE)
    if buffer is None or buffer.shape != master.shape:
        buffer = torch.empty_like(master, requires_grad=False)
        setattr(weight, BUFFER_ATTRIBUTE, buffer)
    return buffer


def master_grad(weight: Tensor) -> tuple[Tensor, bool]:
    """Return the gradient tensor of :func:`master_weight`, and whether it holds values or is uninitialized."""
    master = master_weight(weight)
    initialized = master.grad is not None
    if master.grad is None:
        master.grad = grad_buffer(weight)
    return master.grad, initialized


class BF16Weights:
    """Swaps the float32 parameters of a model for bfloat16 copies whose gradients go to the float32 parameters."""

    def __init__(self, model: nn.Module, reuse_grad_buffer: bool = False) -> None:
        """Prepare; nothing is swapped yet.

        Args:
            model: The model.
            reuse_grad_buffer: Whether the next step overwrites the gradient memory of this one. Gradients are as large
                as the weights. Allocated among the activations of each step, they fragment the heap: the memory of a
                model of BERT-base size grew by a third within twenty steps. Reuse does not pay where all activations
                exist before the first gradient, since gradients can then take the memory of freed activations.
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
    total, initialized = master_grad(copy)
    if initialized:
        _add_in_fp32(total, copy.grad)
    else:
        total.copy_(copy.grad)
    copy.grad = None


def _add_in_fp32(total: Tensor, part: Tensor) -> None:
    """Add bfloat16 to float32 some rows at a time, because torch makes a float32 copy of what it adds."""
    rows = max(1, CAST_CHUNK // max(1, part[0].numel())) if part.dim() > 1 and len(part) else 0
    if not rows:
        total.add_(part)
        return
    for start in range(0, len(part), rows):
        total[start : start + rows].add_(part[start : start + rows])


CHUNK = 1 << 20
"""Gradient values computed at a time, so that they stay in the cache."""
MIN_OUTPUTS = 10_000
"""Minimum outputs of a linear layer that is replaced. Vocabularies are larger, feed-forward layers smaller."""


class _PendingGradient:
    """The parts that the gradient of one weight will be computed from."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.products: list[tuple[Tensor, Tensor]] = []
        self.lookups: list[tuple[Tensor, Tensor]] = []

    @property
    def is_large(self) -> bool:
        """Whether the parts take as much memory as the gradient."""
        held = sum(part.nbytes for pair in (*self.products, *self.lookups) for part in pair)
        return held >= master_weight(self.weight).nbytes

    def flush(self) -> None:
        """Add all parts to the gradient."""
        if self.products:
            _add_projection_grads(self.weight, self.products)
        if self.lookups:
            total, initialized = master_grad(self.weight)
            if not initialized:
                total.zero_()
            for ids, rows in self.lookups:
                total.index_add_(0, ids, rows.to(total.dtype))
        self.products, self.lookups = [], []


_pending: dict[int, _PendingGradient] | None = None


@contextmanager
def deferred_vocabulary_grads() -> Iterator[None]:
    """Return a context that collects vocabulary gradients. They are complete when it ends without an error."""
    global _pending
    before, _pending = _pending, {}
    try:
        yield
        with torch.no_grad():
            for pending in _pending.values():
                pending.flush()
    finally:
        _pending = before


def is_pending(weight: Tensor) -> bool:
    """Return whether the gradient of a weight may still change at the end of :func:`deferred_vocabulary_grads`."""
    return _pending is not None and id(weight) in _pending


def add_projection_grad(weight: Tensor, logit_grad: Tensor, hidden: Tensor) -> None:
    """Add ``logit_grad^T hidden`` to the gradient of a weight, now or at the end of the context.

    Args:
        weight: The weight (words, width), or a shadow copy of it.
        logit_grad: (positions, words). Neither it nor ``hidden`` may change afterwards.
        hidden: (positions, width).
    """
    if not len(logit_grad) and master_weight(weight).grad is not None:
        return
    pending = _pending_for(weight)
    pending.products.append((logit_grad, hidden))
    _flush_if_large(pending)


def add_embedding_grad(weight: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows (places, width) to the gradient rows ``ids`` (places,), now or at the end of the context."""
    pending = _pending_for(weight)
    pending.lookups.append((ids, rows))
    _flush_if_large(pending)


def _pending_for(weight: Tensor) -> _PendingGradient:
    """Return the pending gradient of a weight; the entry holds the weight, so that its id is not reused."""
    if _pending is None:
        return _PendingGradient(weight)
    return _pending.setdefault(id(master_weight(weight)), _PendingGradient(weight))


def _flush_if_large(pending: _PendingGradient) -> None:
    if _pending is None or pending.is_large:
        pending.flush()


def _add_projection_grads(weight: Tensor, products: list[tuple[Tensor, Tensor]]) -> None:
    """Add the sum of the products in the precision of the gradient, some rows at a time."""
    total, initialized = master_grad(weight)
    hidden = torch.cat([states for _, states in products])
    height = max(1, CHUNK // weight.shape[1])
    for start in range(0, len(weight), height):
        logit_grad = torch.cat([part[:, start : start + height] for part, _ in products])
        product, rows = logit_grad.t() @ hidden, total[start : start + height]
        rows.add_(product) if initialized else rows.copy_(product)


class _EmbeddingFunction(torch.autograd.Function):
    """An embedding lookup whose backward adds to ``weight.grad`` and returns no gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        flat, rows = ids.reshape(-1), gradients[0].reshape(-1, gradients[0].shape[-1])
        if ctx.padding is not None:
            real = flat != ctx.padding
            flat, rows = flat[real], rows[real]
        add_embedding_grad(ctx.weight, flat, rows)
        return None, None, None


class _ProjectionFunction(torch.autograd.Function):
    """A linear layer whose backward adds to ``weight.grad`` and returns no gradient for the weight."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.weight = weight
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (hidden,) = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1])
        add_projection_grad(ctx.weight, rows, hidden.reshape(-1, hidden.shape[-1]))
        hidden_grad = (rows @ ctx.weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        return hidden_grad, None, rows.sum(0) if ctx.needs_input_grad[2] else None


def accumulates_in_place(weight: Tensor) -> bool:
    """Return whether autograd would add the gradient of a weight to its ``grad``, and the weight is on a CPU."""
    return weight.device.type == "cpu" and weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


class RowEmbedding(nn.Embedding):
    """``nn.Embedding`` with in-place gradients: for leaf weights and ``backward()``, not for ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows of ``input``."""
        if accumulates_in_place(self.weight):
            return _EmbeddingFunction.apply(self.weight, input, self.padding_idx)
        return super().forward(input)


class RowProjection(nn.Linear):
    """``nn.Linear`` with in-place weight gradients: for leaf weights and ``backward()``, not for ``autograd.grad``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer."""
        if accumulates_in_place(self.weight) and self.weight.dtype == input.dtype:  # else autocast casts one of them
            return _ProjectionFunction.apply(input, self.weight, self.bias)
        return super().forward(input)


def faster_layer(module: nn.Module) -> type[nn.Module] | None:
    """Return the class that replaces a plain embedding, or a plain linear layer with very many outputs; else None."""
    if type(module) is nn.Embedding:
        plain = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
        return RowEmbedding if plain else None
    return RowProjection if type(module) is nn.Linear and module.out_features >= MIN_OUTPUTS else None
