"""How sure an importance is that was measured on a part of a text: the jackknife over groups of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from acclimate.updates.importance import standing

FEWEST = 4
"""Groups from which on the error is told: with fewer it is itself too much by chance."""


def sampling_error(groups: Sequence[tuple[int, Mapping[str, Tensor]]]) -> float | None:
    """Return the standard error of normalised importances, as far as it comes from texts and dropout draws.

    The jackknife (Tukey, 1958): each of the g groups is left out once, and the variance of a value is (g - 1)/g times
    the sum of the squares of what this changes. It is taken of tanh(z) with its sign, before Eq. 10 of DGA makes it
    positive, so it holds for either way to protect.

    Args:
        groups: Random parts of the text: the number of texts, and the sum of their importances, (layers, units) for
            each part, as :func:`acclimate.updates.summed_importance` returns them.

    Returns:
        The root mean square over the units of a part, of the part where it is largest; between 0 and 1 in practice,
        as the importances are. None with fewer than :data:`FEWEST` groups.
    """
    count = len(groups)
    if count < FEWEST:
        return None
    texts = torch.tensor([float(number) for number, _ in groups], dtype=torch.float64)
    errors = []
    for part in groups[0][1]:
        sums = torch.stack([values[part].detach().cpu().double() for _, values in groups])
        without = (sums.sum(0) - sums) / (texts.sum() - texts)[:, None, None]
        scores = torch.stack([standing(values) for values in without])
        variance = (count - 1) / count * (scores - scores.mean(0)).square().sum(0)
        errors.append(float(variance.mean().sqrt()))
    return max(errors)
