"""Gains, transfer and forgetting of a model that learns one domain after the other.

All measures come from the matrix R (stages + 1, domains): R[i, j] is the loss or score on domain j after the first i
domains, in the order of training; row 0 is the base model. See Lopez-Paz and Ranzato (NeurIPS 2017) for the transfers,
and Chaudhry et al. (ECCV 2018) for forgetting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acclimate.labs.sequence.rows import SequenceSpread


def sequence_measures(
    matrix: np.ndarray, *, lower_is_better: bool, separate: Sequence[float] | None = None
) -> dict[str, float | None]:
    """Return the measures of one sequence by name (:data:`acclimate.labs.sequence.rows.MEASURES`).

    Args:
        matrix: R, with NaN where nothing was measured.
        lower_is_better: Whether R has losses.
        separate: Loss or score of a separate model for each domain; None without such models.

    Returns:
        A measure is None if a value that it needs is missing, or there is a single domain and it is about others.

    Raises:
        ValueError: If R does not have one row more than columns.
    """
    values = np.asarray(matrix, dtype=float)
    count = values.shape[-1]
    if values.ndim != 2 or values.shape[0] != count + 1 or not count:
        raise ValueError("The matrix of a sequence needs a column per domain, and one row more than columns.")
    better = -values if lower_is_better else values
    learned = np.diag(better[1:])
    final, base, last = better[-1], better[0], slice(None, -1)
    best = np.array([np.fmax.reduce(better[j + 1 : -1, j], initial=learned[j]) for j in range(count - 1)])
    best[np.isnan(learned[last])] = np.nan  # stages after that may be missing
    before = np.array([better[j, j] for j in range(1, count)])
    alone = np.full(count, np.nan) if separate is None else np.asarray(separate, dtype=float)
    found = {
        "average": values[-1],
        "gain": final - base,
        "forgetting": best - final[last],
        "backward": final[last] - learned[last],
        "forward": before - base[1:],
        "learning": learned - (-alone if lower_is_better else alone),
    }
    return {name: float(one.mean()) if len(one) and np.isfinite(one).all() else None for name, one in found.items()}


def spread_over_runs(values: Sequence[Sequence[float | None]]) -> SequenceSpread | None:
    """Return the mean of a measure with its intervals over seeds and over orders.

    The design is crossed: every seed sees every order. A seed's value is its mean over orders, and an order's value is
    its mean over seeds.

    Args:
        values: (orders, seeds); runs that are missing are None. Seeds and then orders with missing runs are left out.

    Returns:
        None if nothing is left.
    """
    found = np.array([[np.nan if value is None else value for value in row] for row in values], dtype=float)
    if found.size:
        found = found[:, np.isfinite(found).any(0)]
        found = found[np.isfinite(found).all(1)]
    if not found.size:
        return None
    return SequenceSpread(
        mean=float(found.mean()), seeds=_student(found.mean(axis=0)), orders=_student(found.mean(axis=1))
    )


def _student(values: np.ndarray) -> list[float] | None:
    """Return the 95 % interval of a mean; None for fewer than two values."""
    from acclimate.evaluation.significance import mean_interval

    return list(mean_interval(values)) if len(values) > 1 else None
