"""Update rules around the optimizer step, and the importance measurements that they use."""

from acclimate.updates.anchor import PullToStart
from acclimate.updates.importance import (
    estimate_sampling_error,
    mean_importance,
    normalize_importance,
    summed_fisher,
    summed_importance,
)
from acclimate.updates.layers import LayerwiseDecay, freeze, parameter_groups
from acclimate.updates.refactorization import Refactorization
from acclimate.updates.rules import CombinedRules, FreezeOtherRows, SoftMask, UpdateRule
from acclimate.updates.sparsity import StaticSparsity

__all__ = [
    "CombinedRules",
    "FreezeOtherRows",
    "LayerwiseDecay",
    "PullToStart",
    "Refactorization",
    "SoftMask",
    "StaticSparsity",
    "UpdateRule",
    "estimate_sampling_error",
    "freeze",
    "mean_importance",
    "normalize_importance",
    "parameter_groups",
    "summed_fisher",
    "summed_importance",
]
