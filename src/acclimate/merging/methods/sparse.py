"""Sums of sparse differences to the base model: TIES and DARE, which ``peft`` computes."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from acclimate.base.bounds import Fraction, SeedNumber
from acclimate.base.device import preserve_rng_state
from acclimate.base.errors import UserError
from acclimate.merging.base import Context, WeightedMerge, register
from acclimate.merging.rules import Rule, precise


@dataclass(frozen=True)
class SparseMerge(WeightedMerge):
    """A merge of a part of each difference to the base model.

    Attributes:
        density: Share of each difference that is kept (Yadav et al.: 0.2).
    """

    several: ClassVar[bool | None] = None
    needs_base: ClassVar[bool] = True
    joins_tasks: ClassVar[bool] = True
    main: ClassVar[str] = "density"
    density: Fraction = 0.2

    def check_density(self, largest: int) -> None:
        """Check that something is kept of the largest tensor, which has that many entries."""
        if self.density * largest < 1:
            raise UserError(
                f"With density={self.density:g}, no entry of a difference would be kept: the largest tensor has "
                f"{largest:,} entries. Use a higher density."
            )


@register("ties", paper="Yadav et al., NeurIPS 2023", summary="the base model plus the largest part of each change")
@dataclass(frozen=True)
class Ties(SparseMerge):
    """Keeps the largest entries of each difference, lets the signs vote, and averages the entries that agree.

    Attributes:
        weights: Weight of each model (1).
        density: Share of each difference that is kept (paper: 0.2).
        trim: Where the largest entries are kept: ``"tensor"`` of each tensor, as peft and mergekit do, or ``"model"``
            of the whole model, as in the paper, which reads it twice more.
    """

    formula: ClassVar[str] = "base + TIES of the differences to it"
    trim: Literal["tensor", "model"] = "tensor"

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the rule, after a search for the least entry that is kept of each model."""
        merger, weights = context.merger, self.weights or ()
        if self.trim == "tensor":
            self.check_density(merger.largest)
            return sparse(self.name, weights, self.density), []
        parts = [partial(merger.differences, number) for number in range(len(merger.models))]
        return sparse(self.name, weights, 1.0, limits=[least_kept(part, self.density) for part in parts]), []


@register(
    "dare-linear", paper="Yu et al., ICML 2024", summary="the base model plus the mean of a random part of each change"
)
@dataclass(frozen=True)
class DareLinear(SparseMerge):
    """Keeps random entries of each difference, scales them up, and adds them.

    Attributes:
        weights: Weight of each model (equal shares).
        density: Share of each difference that is kept.
        seed: Random seed.
    """

    formula: ClassVar[str] = "base + weighted sum of the differences to it after DARE"
    usual: ClassVar[float | None] = None
    seed: SeedNumber = 0

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the rule."""
        self.check_density(context.merger.largest)
        return sparse(self.name, self.weights or (), self.density, self.seed), []


@register("dare-ties", paper="Yu et al., ICML 2024", summary="TIES of a random part of each change")
@dataclass(frozen=True)
class DareTies(DareLinear):
    """Keeps random entries of each difference, scales them up, and merges them as TIES does.

    Attributes:
        weights: Weight of each model (1).
        density: Share of each difference that is kept.
        seed: Random seed.
    """

    formula: ClassVar[str] = "base + TIES of the differences to it after DARE"
    usual: ClassVar[float | None] = 1.0


def sparse(
    method: str, weights: Sequence[float], density: float, seed: int = 0, limits: Sequence[float] | None = None
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
