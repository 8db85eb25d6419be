"""How far static embeddings moved, where they lie, and which words are a domain's own: on plain matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PRIOR = 0.5
"""Added to every count before odds are formed, so that a word that one text lacks has finite odds."""


@dataclass(frozen=True)
class Movement:
    """How far the rows of one embedding matrix are from those of another.

    Attributes:
        distance: Mean Euclidean distance of a row, in the units of the embeddings.
        coordinate: Mean over rows of the root mean square of the differences: the distance over the square root of
            the width, so that models of different width compare.
        share: Mean distance over mean length of the rows before.
        cosine: Mean cosine of a row before and after; rows of zeros left out.
        moved: Share of the rows that are not what they were.
        tokens: Over how many rows.
    """

    distance: float
    coordinate: float
    share: float
    cosine: float
    moved: float
    tokens: int


def movement(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None = None) -> Movement:
    """Measure how far rows moved.

    Args:
        before: (tokens, width).
        after: (tokens, width).
        weights: How much each row counts in the means, (tokens,), such as how often it occurs in a text; rows of
            weight zero are left out. None: all alike.

    Raises:
        ValueError: If the shapes differ, or no row counts.
    """
    weight = np.ones(len(before)) if weights is None else np.asarray(weights, dtype=float)
    if before.shape != after.shape or weight.shape != before.shape[:1] or not weight.sum() > 0:
        raise ValueError("Two matrices of the same shape are needed, and weights for their rows.")
    one, other, weight = (values[weight > 0] for values in (before.astype(float), after.astype(float), weight))
    distances, lengths = np.linalg.norm(other - one, axis=1), np.linalg.norm(one, axis=1)
    product = lengths * np.linalg.norm(other, axis=1)
    real = product > 0
    cosines = (one[real] * other[real]).sum(1) / product[real]
    distance = float(np.average(distances, weights=weight))
    length = float(np.average(lengths, weights=weight))
    return Movement(
        distance=distance,
        coordinate=distance / before.shape[1] ** 0.5,
        share=distance / length if length else 0.0,
        cosine=float(np.average(cosines, weights=weight[real])) if real.any() else 0.0,
        moved=float(np.average(distances > 0, weights=weight)),
        tokens=len(weight),
    )


def principal_plane(matrices: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[float, float]]:
    """Project matrices to the two directions in which their rows, all taken together, vary most.

    One plane for all, so that the pictures can be laid over each other. The sign of each axis is such that its
    largest weight is positive.

    Args:
        matrices: (tokens, width) each.

    Returns:
        (tokens, 2) for each, and the share of the variance along each axis.
    """
    joined = np.concatenate([matrix.astype(float) for matrix in matrices])
    centre = joined.mean(0)
    values, vectors = np.linalg.eigh((joined - centre).T @ (joined - centre))
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])
    total = max(float(values.sum()), 1e-30)
    shares = (float(values[-1]) / total, float(values[-2]) / total)
    return [(matrix.astype(float) - centre) @ axes for matrix in matrices], shares


def log_odds(counts: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return how much more a token belongs to one text than to another, in standard errors.

    z = (log odds in the one - log odds in the other) / sqrt(1 / (y + 0.5) + 1 / (y' + 0.5)), with 0.5 added to every
    count (Monroe, Colaresi and Quinn, 2008, with a flat prior): a rare word needs a larger difference than a frequent
    one.

    Args:
        counts: How often each token occurs in the one text, (tokens,).
        other: The same in the other.
    """
    odds, errors = [], []
    for values in (counts, other):
        raised = np.asarray(values, dtype=float) + PRIOR
        odds.append(np.log(raised) - np.log(raised.sum() - raised))
        errors.append(1 / raised)
    return (odds[0] - odds[1]) / np.sqrt(errors[0] + errors[1])
