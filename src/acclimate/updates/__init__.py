"""What happens between the backward and the optimiser step, and the importances that steer it."""

from acclimate.updates.base import UpdateRule
from acclimate.updates.frozen_rows import FreezeOtherRows
from acclimate.updates.importance import (
    estimate_sampling_error,
    mean_importance,
    normalise_importance,
    summed_importance,
)
from acclimate.updates.soft_mask import SoftMask

__all__ = [
    "FreezeOtherRows",
    "SoftMask",
    "UpdateRule",
    "estimate_sampling_error",
    "mean_importance",
    "normalise_importance",
    "summed_importance",
]
