"""The default recipe of fine-tuning: passes over the rows and learning rates that let a model learn from few rows.

On few rows the number of steps decides and not the number of epochs: with many more passes, a warm-up and no early
stop, fine-tuning is stable (Mosbach et al., 2021; Zhang et al., 2021). The learning rate falls with the width of the
model, as the rate of hidden layers under Adam does in Yang et al. (2022). docs/results/recipe has the runs behind the
numbers. Encoders of sentences that learn pairs start from useful vectors and keep a low rate and few passes.
"""

from __future__ import annotations

import math

EPOCHS, STEPS = 5, 300
"""Minimum passes over the train rows, and minimum number of steps."""
RATE, WIDTH = 2e-4, 384
"""Learning rate of a model of this width; it is inversely proportional to the width."""
HIGHEST_RATE = 5e-4
CONTRASTIVE_RATE = 3e-5
"""Learning rate of models that learn pairs of texts, with :data:`EPOCHS` passes."""
FACTORS = (0.5, 1.0, 2.0)
"""Learning rates that a search tries, relative to the default."""
WARMUP = 0.1
MEASURED_EPOCHS = 20
"""Epochs after which a training that keeps its best weights is measured, if it has more."""


def default_epochs(rows: int, batch_size: int, *, contrastive: bool = False) -> int:
    """Return the passes over ``rows`` that are at least :data:`EPOCHS`, and :data:`STEPS` steps."""
    steps = max(1, math.ceil(rows / batch_size))
    return EPOCHS if contrastive else max(EPOCHS, math.ceil(STEPS / steps))


def default_rate(width: int | None, *, contrastive: bool = False) -> float:
    """Return the learning rate of a model of a width, rounded to two digits; of :data:`WIDTH` if it is not known."""
    if contrastive:
        return CONTRASTIVE_RATE
    return float(f"{min(HIGHEST_RATE, RATE * WIDTH / (width or WIDTH)):.2g}")


def rates_to_try(width: int | None) -> list[float]:
    """Return the learning rates that a search tries, the default in the middle."""
    return [float(f"{factor * default_rate(width):.2g}") for factor in FACTORS]
