"""What ``passes.cpp`` does, on tensors; :func:`passes_for` says where that is possible."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.backbone import compiled

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
FEW = 1 << 15
"""Values for which one thread is faster than two, which have to be called."""
P, N, KEY, CUT, FACTOR = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int, ctypes.c_float
ARGUMENTS = {
    "drop": (P, P, N, KEY, CUT, FACTOR),
    "split_heads": (P, P, P, N, N, N, N, N, N, N),
    "merge_heads": (P, P, P, N, N, N, N),
    "weigh": (P, P, P, N, N, N, N, N, N, N, KEY, CUT),
    "weigh_back": (P, P, P, N, N, KEY, CUT),
    "add_and_norm": (P, P, P, P, P, P, P, P, N, N, FACTOR, KEY, CUT, FACTOR),
    "add_and_norm_back": (P, P, P, P, P, P, P, P, P, N, N, KEY, CUT, FACTOR),
    "cross_entropy": (P, P, P, P, P, N, N),
    "cross_entropy_back": (P, P, P, P, P, N, N, N, FACTOR),
    "add": (P, P, N),
}
"""What each function takes before the number of threads: pointers, sizes, and what dropout is drawn by."""
PLAIN = (Tensor, nn.Parameter)
"""Other tensors, of a model in shards say, need not have their values where their pointer says."""


class Passes:
    """The compiled passes over values of one type."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        """Look up what ``library`` has for the type of that name."""
        self._functions = {}
        for function, arguments in ARGUMENTS.items():
            if hasattr(library, f"{function}_{name}"):
                found = self._functions[function] = getattr(library, f"{function}_{name}")
                found.argtypes = (*arguments, ctypes.c_int)
                found.restype = ctypes.c_int64 if function == "cross_entropy" else None

    def drop(self, values: Tensor, key: int, cut: int, factor: float) -> Tensor:
        """Return ``factor`` times the values that dropout keeps, and zero for the others.

        Args:
            values: Any shape.
            key: Of the draw (:func:`acclimate.backbone.draws.random_key`).
            cut: Of 32,768 cases how many drop a value.
            factor: Of those that are kept.
        """
        values = values.contiguous()
        out = torch.empty_like(values)
        self._call("drop", values, out, values.numel(), key, cut, factor, of=values)
        return out

    def split_heads(self, part: Tensor, places: Tensor | None, rows: int, tokens: int) -> Tensor:
        """Return (rows x heads, tokens, head width), contiguous, from what has the tokens of all rows in one.

        Args:
            part: (1, heads, kept, head width); (rows, heads, tokens, head width) if nothing was left out.
            places: Which of those that were kept each token is (rows x tokens,); None if nothing was left out.
            rows: Of the result.
            tokens: Of each row.
        """
        part = part if part.stride(3) == 1 else part.contiguous()
        heads, width = part.shape[1], part.shape[3]
        out = part.new_empty(rows * heads, tokens, width)
        self._call("split_heads", part, out, places, rows, heads, tokens, width, *part.stride()[:3], of=out)
        return out

    def merge_heads(self, part: Tensor, places: Tensor | None, heads: int, count: int) -> Tensor:
        """Return (count, heads, head width), contiguous, from (rows x heads, tokens, head width), contiguous.

        Args:
            part: As :meth:`split_heads` returns it.
            places: Which of the rows x tokens are wanted (count,); None for all.
            heads: Of each row.
            count: How many tokens are wanted.
        """
        tokens, width = part.shape[1:]
        out = part.new_empty(count, heads, width)
        self._call("merge_heads", part, out, places, count, heads, tokens, width, of=out)
        return out

    def weigh_(self, scores: Tensor, bias: Tensor | None, key: int, cut: int) -> Tensor:
        """Turn scores into softmax(scores + bias) in place, and return what dropout keeps of it.

        Args:
            scores: (rows, heads, tokens, keys), contiguous.
            bias: What can be broadcast to the scores, or None.
            key: As for :meth:`drop`.
            cut: As for :meth:`drop`; 0 keeps all, and then it is the scores themselves that are returned.
        """
        kept = torch.empty_like(scores) if cut else scores
        steps: tuple[int, ...] = (0, 0, 0)
        if bias is not None:
            bias = bias.to(scores.dtype)
            if bias.shape[-1] != scores.shape[3] or bias.stride(-1) != 1:
                bias = bias.expand(*bias.shape[:-1], scores.shape[3]).contiguous()
            steps = bias.expand(scores.shape).stride()[:3]
        self._call("weigh", scores, kept, bias, *steps, *scores.shape, key, cut, of=scores)
        return kept

    def weigh_back_(self, weights: Tensor, slopes: Tensor, key: int, cut: int) -> Tensor:
        """Turn slopes of what dropout kept into those of the scores, in place, and return what it kept, once more.

        Args:
            weights: What :meth:`weigh_` made of the scores.
            slopes: As large, contiguous.
            key: As for :meth:`weigh_`.
            cut: As for :meth:`weigh_`.
        """
        kept = torch.empty_like(weights) if cut else weights
        lines, keys = weights.numel() // max(1, weights.shape[-1]), weights.shape[-1]
        self._call("weigh_back", weights, slopes, kept, lines, keys, key, cut, of=weights)
        return kept

    def add_and_norm(
        self,
        update: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        key: int,
        cut: int,
        factor: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return LayerNorm(residual + dropout(update)), that sum, and what the way back needs of its rows.

        Args:
            update: (..., width).
            residual: As large.
            weight: Of the normalisation (width,).
            bias: Of the normalisation (width,).
            epsilon: What is added to the variance.
            key: As for :meth:`drop`.
            cut: As for :meth:`drop`; 0 keeps all.
            factor: As for :meth:`drop`.
        """
        update, residual = update.contiguous(), residual.contiguous()
        width = len(weight)
        rows = update.numel() // width
        sums, out, stats = torch.empty_like(update), torch.empty_like(update), torch.empty(2, rows)
        sizes = rows, width, epsilon, key, cut, factor
        self._call("add_and_norm", update, residual, weight, bias, sums, out, *stats, *sizes, of=update)
        return out, sums, stats

    def add_and_norm_back(
        self, slopes: Tensor, sums: Tensor, stats: Tensor, weight: Tensor, key: int, cut: int, factor: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the slopes of update, residual, weight and bias from those of what :meth:`add_and_norm` returned."""
        slopes = slopes.contiguous()
        for_residual = torch.empty_like(sums)
        for_update = torch.empty_like(sums) if cut else for_residual
        both = weight.new_zeros(2, len(weight))
        sizes = stats.shape[1], len(weight), key, cut, factor
        self._call("add_and_norm_back", slopes, sums, *stats, weight, for_update, for_residual, *both, *sizes, of=sums)
        return for_update, for_residual, both[0], both[1]

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (items,) in float32, in nats, and what the way back needs of each row.

        Args:
            logits: (items or more, classes), contiguous; rows beyond the labels count for nothing.
            labels: Classes (items,), int64, contiguous.

        Raises:
            IndexError: If a label is no class.
            ValueError: If there are more labels than rows, or these are of another kind.
        """
        if labels.dim() != 1 or len(labels) > len(logits):
            raise ValueError(f"{len(logits)} rows of logits have labels of shape {tuple(labels.shape)}")
        if labels.dtype != torch.int64:
            raise ValueError(f"labels are int64, not {labels.dtype}")
        items, classes = len(labels), logits.shape[1]
        losses, stats = torch.empty(items), torch.empty(2, items)
        if self._call("cross_entropy", logits, labels, losses, *stats, items, classes, of=logits[:items]):
            raise IndexError(f"a label is none of {classes} classes")
        return losses, stats

    def cross_entropy_back(self, logits: Tensor, labels: Tensor, stats: Tensor, factor: float) -> Tensor:
        """Return ``factor`` times the slopes of the logits in the sum of the losses; as large as the logits."""
        slopes = torch.empty_like(logits)
        sizes = len(labels), *logits.shape, factor
        self._call("cross_entropy_back", logits, labels, *stats, slopes, *sizes, of=logits)
        return slopes

    def add_(self, total: Tensor, part: Tensor) -> None:
        """Add ``part``, of this type, to ``total`` in float32; both contiguous and of one shape."""
        self._call("add", total, part, part.numel(), of=part)

    def _call(self, function: str, *arguments: Any, of: Tensor) -> int:
        """Call a function with pointers to tensors; ``of`` is what it passes over."""
        if not of.numel():
            return 0
        threads = 1 if of.numel() < FEW else torch.get_num_threads()
        plain = [one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]
        return self._functions[function](*plain, threads) or 0


def passes_for(values: Tensor) -> Passes | None:
    """Return the passes over such values, or None where there are none and torch has to do it."""
    name = NAMES.get(values.dtype)
    if name is None or values.device.type != "cpu" or type(values) not in PLAIN:
        return None
    library = compiled.library()
    return None if library is None else _passes(library, name)


_passes = cache(Passes)
