"""How alike importances are, and how alike they would be by chance.

Normalised importances (DGA, Eq. 10) are all positive and nearly half of them large, so that the cosine of two
independent random ones is high already: about 0.8 for 12 x 12 heads. A cosine of 0.92 between two domains, as in
Section 4.3 of the paper, says something only beside that number, and beside the cosine of one domain with itself
under another seed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from acclimate.updates import normalise_importance

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Edges of the bins in which the paper counts heads; the last bin holds its upper edge."""
MOST_DRAWS = 10_000
NUMBERS = 20_000_000
"""Random numbers drawn for one baseline at most; with very many units fewer draws give the same certainty."""
AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Spread:
    """A mean with the range that holds 95 % of the draws."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Spread:
        """Summarise values of shape (draws,)."""
        low, high = torch.quantile(values.double(), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        return cls(float(values.double().mean()), low, high)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of every importance of one stack with every one of another.

    Args:
        first: (n, layers, units).
        second: (m, layers, units).

    Returns:
        (n, m); zero where one of the two is zero throughout.
    """
    one, two = (torch.nn.functional.normalize(values.flatten(1), dim=1) for values in (first, second))
    return one @ two.T


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation within each layer, averaged over the layers; zero is what chance gives.

    Args:
        first: (n, layers, units), not normalised.
        second: (m, layers, units), not normalised.

    Returns:
        (n, m); a layer whose units are all the same counts as zero.
    """
    one, two = (
        torch.nn.functional.normalize(values - values.mean(2, keepdim=True), dim=2) for values in (first, second)
    )
    return torch.einsum("nlu,mlu->nm", one, two) / first.shape[1]


def shares(normalised: Tensor) -> Tensor:
    """Return the share of units in each bin of :data:`EDGES`.

    Args:
        normalised: (n, layers, units), between 0 and 1.

    Returns:
        (n, bins); each row sums to one.
    """
    bins = torch.bucketize(normalised.flatten(1), torch.tensor(EDGES[1:-1], device=normalised.device), right=True)
    return torch.stack([(bins == number).double().mean(1) for number in range(len(EDGES) - 1)], dim=1)


def random_similarity(
    layers: int,
    units: int,
    protect: Literal["unusual", "important"] = "unusual",
    *,
    draws: int | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Draw pairs of independent importances and measure them as real ones are measured, after normalisation.

    Args:
        layers: Layers of the model.
        units: Units in a layer: heads, for instance.
        protect: See :func:`acclimate.updates.normalise_importance`.
        draws: Pairs; by default up to 10,000, fewer where there are very many units.
        seed: Of the draws.

    Returns:
        For ``"normal"`` and ``"uniform"`` importances: ``draws``, ``cosine`` (mean, low and high of 95 %) and
        ``shares`` (the same for each bin).
    """
    draws = draws or max(100, min(MOST_DRAWS, NUMBERS // (2 * layers * units)))
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, dict[str, Any]] = {}
    for kind, draw in (("normal", torch.randn), ("uniform", torch.rand)):
        alike: list[Tensor] = []
        counted: list[Tensor] = []
        left = draws
        while left:
            now = min(left, max(1, AT_ONCE // (2 * layers * units)))
            left -= now
            # Normalisation goes layer by layer, so all layers of all draws can stand below each other.
            values = normalise_importance(draw(2 * now * layers, units, generator=generator), protect)
            pairs = values.view(2, now, layers, units)
            alike.append(torch.cosine_similarity(pairs[0].flatten(1), pairs[1].flatten(1), dim=1))
            counted.append(shares(pairs[0]))
        bins = torch.cat(counted)
        found[kind] = {
            "draws": draws,
            "cosine": asdict(Spread.of(torch.cat(alike))),
            "shares": [asdict(Spread.of(bins[:, number])) for number in range(bins.shape[1])],
        }
    return found
