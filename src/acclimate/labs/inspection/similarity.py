"""Similarity of importance scores, compared with chance.

Normalized importance scores (DGA, Eq. 10) are positive and almost half of them are large, so two independent random
score matrices already have a high cosine similarity: about 0.8 for 12 x 12 heads. A cosine of 0.92 between two
domains, as in Section 4.3 of the paper, is meaningful only next to that baseline and to the similarity between two
seeds of one domain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from acclimate.parts.updates import normalize_importance

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Edges of the bins in which the paper counts heads. The last bin includes its upper edge."""
MAX_DRAWS = 10_000
MAX_NUMBERS = 20_000_000
"""Maximum random numbers per baseline. With many units, fewer draws give the same precision."""
CHUNK = 2_000_000
"""Random numbers held in memory at a time."""


@dataclass(frozen=True)
class Spread:
    """Mean and central 95 % range of random draws."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Spread:
        """Summarize values of shape (draws,)."""
        low, high = torch.quantile(values.double(), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        return cls(float(values.double().mean()), low, high)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine similarity of every score matrix of one stack with every one of another.

    Args:
        first: (n, layers, units).
        second: (m, layers, units).

    Returns:
        (n, m); zero where a matrix is all zeros.
    """
    one, two = (torch.nn.functional.normalize(values.flatten(1), dim=1) for values in (first, second))
    return one @ two.T


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation within layers, averaged over layers; its expectation by chance is zero.

    Args:
        first: (n, layers, units), not normalized.
        second: (m, layers, units), not normalized.

    Returns:
        (n, m); a layer with constant scores counts as zero.
    """
    one, two = (
        torch.nn.functional.normalize(values - values.mean(2, keepdim=True), dim=2) for values in (first, second)
    )
    return torch.einsum("nlu,mlu->nm", one, two) / first.shape[1]


def shares(normalized: Tensor) -> Tensor:
    """Return the fraction of units in each bin of :data:`EDGES`.

    Args:
        normalized: (n, layers, units), between 0 and 1.

    Returns:
        (n, bins); each row sums to one.
    """
    bins = torch.bucketize(normalized.flatten(1), torch.tensor(EDGES[1:-1], device=normalized.device), right=True)
    return torch.stack([(bins == number).double().mean(1) for number in range(len(EDGES) - 1)], dim=1)


def random_similarity(
    layers: int,
    units: int,
    protect: Literal["unusual", "important"] = "unusual",
    *,
    draws: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Draw pairs of independent random scores and measure their similarity after the usual normalization.

    Args:
        layers: Number of layers.
        units: Units per layer, such as heads.
        protect: See :func:`acclimate.parts.updates.normalize_importance`.
        draws: Number of pairs; by default up to 10,000, fewer for very many units.

    Returns:
        For ``"normal"`` and ``"uniform"`` scores: ``draws``, ``cosine`` (mean, and low and high of the central 95 %)
        and ``shares`` (the same for each bin).
    """
    draws = draws or max(100, min(MAX_DRAWS, MAX_NUMBERS // (2 * layers * units)))
    generator = torch.Generator().manual_seed(0)
    found: dict[str, dict[str, Any]] = {}
    for kind, draw in (("normal", torch.randn), ("uniform", torch.rand)):
        similarities: list[Tensor] = []
        counted: list[Tensor] = []
        left = draws
        while left:
            now = min(left, max(1, CHUNK // (2 * layers * units)))
            left -= now
            # Normalization is per layer, so the layers of all draws can be stacked.
            values = normalize_importance(draw(2 * now * layers, units, generator=generator), protect)
            pairs = values.view(2, now, layers, units)
            similarities.append(torch.cosine_similarity(pairs[0].flatten(1), pairs[1].flatten(1), dim=1))
            counted.append(shares(pairs[0]))
        bins = torch.cat(counted)
        found[kind] = {
            "draws": draws,
            "cosine": asdict(Spread.of(torch.cat(similarities))),
            "shares": [asdict(Spread.of(bins[:, number])) for number in range(bins.shape[1])],
        }
    return found
