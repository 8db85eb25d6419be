"""Merging of models that come from one base model: chat vectors, interpolation, soups, TIES and DARE."""

from acclimate.merging.merge import MergeResult, merge

__all__ = ["MergeResult", "merge"]
