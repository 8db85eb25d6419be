"""The paired t-test over seeds, as papers report it; for comparison with them, not to decide by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def paired_t(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value of "the mean difference over seeds is zero", by Student's t with ``n - 1`` degrees.

    It takes the score of each seed as a number without error. So it ignores what :func:`paired_bootstrap` looks at
    besides: the luck of the test items, which all seeds share, so that more seeds make p small although other items
    might turn the difference around; and that seeds which start from the same adapted model are no independent draws.

    Args:
        a: Score of one method for each seed.
        b: Score of the other; entry ``i`` of both is the same seed.

    Returns:
        None with fewer than two seeds; 1 if both are the same for every seed, and 0 if they differ by the same amount,
        not zero, for every one.

    Raises:
        ValueError: If there are not as many of one as of the other.
    """
    if len(a) != len(b):
        raise ValueError("A paired test needs as many seeds of one method as of the other.")
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if len(difference) < 2:
        return None
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / len(difference) ** 0.5
    if error < 1e-15:
        return 1.0 if abs(mean) < 1e-15 else 0.0
    return float(2 * stats.t.sf(abs(mean) / error, len(difference) - 1))
