"""How the tensors of several models become one: the type of a rule, and weighted sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Rule = Callable[[str, Sequence[Callable[[], Tensor]]], Tensor]
"""Function that merges a tensor, given its name and functions that read it from the sources, in their order."""


def linear(coefficients: Sequence[float]) -> Rule:
    """Return the rule sum of coefficient * tensor.

    Terms are added from the last to the first, so that a difference of two sources is exact where they are equal. If
    only one source counts, and with the coefficient 1, its tensor is returned as it is.
    """

    def rule(name: str, reads: Sequence[Callable[[], Tensor]]) -> Tensor:
        terms = [(factor, read) for factor, read in zip(coefficients, reads, strict=True) if factor]
        if [factor for factor, _ in terms] == [1.0]:
            return terms[0][1]()
        factor, read = terms.pop()
        total = precise(read()).mul(factor)
        for factor, read in reversed(terms):
            total.add_(precise(read()), alpha=factor)
        return total

    return rule


def precise(value: Tensor) -> Tensor:
    """Return a tensor in fp32, or in fp64 if it has that type."""
    return value if value.dtype == torch.float64 else value.float()
