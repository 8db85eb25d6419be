"""How the tensors of several models become one: weighted sums, sparse differences, Fisher weights, and layers."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from acclimate.base.device import preserve_rng_state
from acclimate.base.errors import UserError

Rule = Callable[[str, Sequence[Callable[[], Tensor]]], Tensor]
"""Function that merges a tensor, given its name and functions that read it from the sources, in their order."""
FISHER_FLOOR = 1e-6
"""Least Fisher information of a parameter, as a share of the root mean square over the model."""


def make_rule(config: Mapping[str, Any]) -> Rule:
    """Return the rule of a merge that needs no measurement, given its resolved options.

    The sources are the models in their order, then the instruction-tuned one or the skill, then the base model.
    """
    method, weights = config["method"], config["weights"]
    if method == "interpolation":
        return linear([config["alpha"], 1 - config["alpha"]])
    if method in ("chat-vector", "skill"):
        return linear([1.0, weights[0], -weights[0]])
    if method == "task-arithmetic":
        return linear([*weights, 1 - sum(weights)])
    if method == "soup":
        return linear(weights)
    return sparse(method, weights, config["density"], config["seed"])


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


def sparse(
    method: str, weights: Sequence[float], density: float, seed: int, limits: Sequence[float] | None = None
) -> Rule:
    """Return the rule base + combination of sparse differences, as in ``peft.utils.merge_utils``.

    Args:
        method: ``"ties"``, ``"dare-linear"`` or ``"dare-ties"``.
        weights: Weight of each model; the base model is the last source.
        density: Share of each difference that is kept.
        seed: Random seed; each tensor has its own random numbers, whatever the order.
        limits: For each model, the magnitude below which an entry of its difference becomes zero before.

    Raises:
        UserError: If ``peft`` is not installed.
    """
    try:
        from peft.utils import merge_utils
    except ImportError as error:
        raise UserError(f"The method '{method}' needs peft: pip install 'acclimate[lora]'.") from error
    combine = getattr(merge_utils, method.replace("-", "_"))

    def rule(name: str, reads: Sequence[Callable[[], Tensor]]) -> Tensor:
        base = precise(reads[-1]())
        deltas = [precise(read()) - base for read in reads[:-1]]
        if limits is not None:
            deltas = [delta * (delta.float().abs() >= limit) for delta, limit in zip(deltas, limits, strict=True)]
        with preserve_rng_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a density of 1 is allowed here
            torch.manual_seed(seed + zlib.crc32(name.encode()))
            return base + combine(deltas, torch.tensor(weights, dtype=base.dtype), density=density)

    return rule


def least_kept(parts: Callable[[], Iterable[Tensor]], share: float) -> float:
    """Return the smallest of the largest magnitudes in a model, exactly, without holding all of them.

    The bits of a positive fp32 number, read as an integer, are in the order of the numbers. So a first pass counts the
    upper 16 bits, and a second one the lower 16 bits among the numbers that share the upper ones with the result.

    Args:
        parts: Function that returns the fp32 tensors; it is called twice.
        share: Share of the entries that are kept, at least one.
    """

    def bits() -> Iterator[Tensor]:
        for part in parts():
            yield part.abs().flatten().contiguous().view(torch.int32)

    def find(counts: Tensor, wanted: int) -> tuple[int, int]:
        """Return the bucket of the number with that rank from the top, and its rank in the bucket."""
        above = counts.flip(0).cumsum(0)
        place = int((above < wanted).sum())
        return len(counts) - 1 - place, wanted - (int(above[place - 1]) if place else 0)

    counts = torch.zeros(1 << 16, dtype=torch.long)
    for part in bits():
        counts += torch.bincount(part >> 16, minlength=len(counts))
    upper, rank = find(counts, max(1, int(share * int(counts.sum()))))
    counts.zero_()
    for part in bits():
        counts += torch.bincount(part[part >> 16 == upper] & 0xFFFF, minlength=len(counts))
    lower, _ = find(counts, rank)
    return float(torch.tensor([upper << 16 | lower], dtype=torch.int32).view(torch.float32))


def fisher_weighted(weights: Sequence[float], information: Sequence[Callable[[str], Tensor | None]]) -> Rule:
    """Return the rule sum of weight F model / sum of weight F (Matena and Raffel, NeurIPS 2022, Eq. 3).

    F is the diagonal of a Fisher information matrix, relative to its root mean square over the model. That is the norm
    by which the authors divide it, up to a factor that depends on the number of parameters: with their norm of one and
    their floor of 1e-6, nearly all parameters of a large model are below the floor and get the plain mean.

    Args:
        weights: Weight of each model.
        information: For each model, a function that returns F by name, relative to its root mean square; None for a
            tensor that was not measured, whose values are averaged.
    """

    def rule(name: str, reads: Sequence[Callable[[], Tensor]]) -> Tensor:
        total = norm = torch.zeros(())
        for weight, find, read in zip(weights, information, reads, strict=True):
            if not weight:
                continue
            value, found = precise(read()), find(name)
            found = torch.ones_like(value) if found is None else found.to(value).clamp_min(FISHER_FLOOR)
            share = found[: len(value)] if value.dim() else found  # rows of tokens that not all models have
            total, norm = total + weight * share * value, norm + weight * share
        return total / norm

    return rule


def taken_from_second(names: Collection[str]) -> Rule:
    """Return the rule that copies the named tensors from the second source, and all others from the first."""
    return lambda name, reads: reads[1 if name in names else 0]()


def precise(value: Tensor) -> Tensor:
    """Return a tensor in fp32, or in fp64 if it has that type."""
    return value if value.dtype == torch.float64 else value.float()
