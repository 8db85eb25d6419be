"""Whether a training has gone on long enough, from its losses.

With a learning rate that falls linearly to zero, the loss of any training levels off at the end, so the last quarter
of the steps is compared with the quarter before. A model that has learned its train rows has most of the fall behind
it by then, or a loss far below the one that it started from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BINS = 20
"""Number of means that the losses of a training are stored as."""
LATE_SHARE = 0.1
"""Share of the fall between the first and the last quarter that is steep in the last one."""
LEFT = 0.5
"""Share of the loss at the start above which a model has most of the way before it."""
SIGNIFICANT = 2.0
"""Standard errors by which the last quarter has to differ from the first, and from the one before."""


def bin_losses(log: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the mean losses of :data:`BINS` equal parts of a training, or of as many as the log has lines.

    Args:
        log: Lines of the log with a mean ``loss`` per interval; others are left out.
    """
    losses = [float(line["loss"]) for line in log if "loss" in line]
    parts = np.array_split(np.asarray(losses), min(BINS, len(losses))) if losses else []
    return [float(f"{part.mean():.5g}") for part in parts]


def still_falls(losses: Sequence[float]) -> bool:
    """Return whether the loss of a training still fell steeply at the end, so that more steps would lower it.

    Args:
        losses: Mean losses of equal parts of the training, from :func:`bin_losses`; of fewer than eight nothing is
            said.
    """
    values = np.asarray(losses, dtype=float)
    if len(values) < 8 or not np.isfinite(values).all():
        return False
    first, _, third, last = np.array_split(values, 4)
    fall, late = first.mean() - last.mean(), third.mean() - last.mean()
    whole, error = (np.sqrt(one.var(ddof=1) / len(one) + last.var(ddof=1) / len(last)) for one in (first, third))
    # If the last quarter is like the first, the loss has not fallen: there was a bump before the end.
    is_steep = late > LATE_SHARE * fall and fall > SIGNIFICANT * whole and late > SIGNIFICANT * error
    return bool(is_steep and last.mean() > LEFT * values[0])


def first_and_last(losses: Sequence[float]) -> tuple[float, float]:
    """Return the mean losses of the first and the last quarter, between which :func:`still_falls` looks."""
    quarters = np.array_split(np.asarray(losses, dtype=float), 4)
    return float(quarters[0].mean()), float(quarters[-1].mean())
