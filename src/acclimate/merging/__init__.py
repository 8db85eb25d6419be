"""Merging of models that come from one base model, without training."""

from acclimate.merging.merge import MergeResult, merge

__all__ = ["MergeResult", "merge"]
