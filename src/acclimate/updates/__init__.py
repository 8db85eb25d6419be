"""Update rules around the optimizer step, and the importance measurements that they use."""

from acclimate.updates.importance import (
    estimate_sampling_error,
    mean_importance,
    normalize_importance,
    summed_importance,
)
from acclimate.updates.rules import FreezeOtherRows, SoftMask, UpdateRule

__all__ = [
    "FreezeOtherRows",
    "SoftMask",
    "UpdateRule",
    "estimate_sampling_error",
    "mean_importance",
    "normalize_importance",
    "summed_importance",
]
