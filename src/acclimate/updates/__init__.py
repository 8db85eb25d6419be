"""What happens between the backward and the optimiser step, and the importances that steer it."""

from acclimate.updates.base import UpdateRule
from acclimate.updates.importance import mean_importance, normalise, summed_importance
from acclimate.updates.keep import TrainRows
from acclimate.updates.sampling_error import sampling_error
from acclimate.updates.soft_mask import SoftMask

__all__ = [
    "SoftMask",
    "TrainRows",
    "UpdateRule",
    "mean_importance",
    "normalise",
    "sampling_error",
    "summed_importance",
]
