"""What a learning curve promises if it goes on as it began: two curves with prediction intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

FEWEST = 4
"""Points that a fit needs."""


def project(steps: Sequence[float], losses: Sequence[float], target: float, level: float = 0.95) -> dict[str, Any]:
    """Extend a learning curve to a later step.

    Two curves are fitted by least squares to the points after step zero: ``log-linear``, L = a - b ln t, and
    ``power law``, L = a t^-b (a line between ln L and ln t; Hestness et al., 2017, and others found such curves over
    orders of magnitude of data). Each has the prediction interval of its line,

        y(x) +- t(level, n - 2) s sqrt(1 + 1/n + (x - mean)^2 / Sxx),    x = ln t.

    The interval knows the scatter of the points around the line, and nothing of a curve that bends: beyond a few times
    the steps that were seen, the two curves and the last point itself say more about what is not known.

    Args:
        steps: Of the measurements; step zero is left out.
        losses: Measured there.
        target: The later step.
        level: Of the intervals.

    Returns:
        For each curve ``value``, ``low`` and ``high`` of the loss at the target; and ``beyond``, how many times
        further than the last point that is. Empty if there are fewer than four points, or the target is no later.

    Raises:
        ValueError: If the lengths differ.
    """
    points = [(step, loss) for step, loss in zip(steps, losses, strict=True) if step > 0]
    if len(points) < FEWEST or target <= points[-1][0]:
        return {}
    t, y = np.array(points, dtype=float).T
    found: dict[str, Any] = {"beyond": target / t[-1], "log-linear": _line(np.log(t), y, math.log(target), level)}
    if y.min() > 0:
        line = _line(np.log(t), np.log(y), math.log(target), level)
        found["power law"] = {name: math.exp(value) for name, value in line.items()}
    return found


def _line(x: np.ndarray, y: np.ndarray, target: float, level: float) -> dict[str, float]:
    """Fit a line to points (n,) and predict it at the target, with the interval for a new point."""
    from scipy import stats

    centre, spread = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = ((x - centre) * (y - y.mean())).sum() / spread
    value = float(y.mean() + slope * (target - centre))
    residuals = y - y.mean() - slope * (x - centre)
    scatter = math.sqrt((residuals**2).sum() / (len(x) - 2))
    width = stats.t.ppf((1 + level) / 2, len(x) - 2) * scatter
    width *= math.sqrt(1 + 1 / len(x) + (target - centre) ** 2 / spread)
    return {"value": value, "low": value - float(width), "high": value + float(width)}
