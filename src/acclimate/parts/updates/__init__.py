"""Update rules around the optimizer step, and the importance measurements that they use."""

from acclimate.parts.updates.anchor import PullToStart
from acclimate.parts.updates.importance import (
    estimate_sampling_error,
    mean_importance,
    normalize_importance,
    summed_fisher,
    summed_importance,
)
from acclimate.parts.updates.layers import LayerwiseDecay, freeze, parameter_groups
from acclimate.parts.updates.refactorization import Refactorization
from acclimate.parts.updates.rules import CombinedRules, FreezeOtherRows, SoftMask, UpdateRule
from acclimate.parts.updates.sparsity import StaticSparsity

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
