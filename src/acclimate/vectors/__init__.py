"""Vectors of words from outside of the model: fastText, looked up by what each token of a vocabulary spells."""

from acclimate.vectors.surface import Surface, surfaces
from acclimate.vectors.targets import Targets, make_targets

__all__ = ["Surface", "Targets", "make_targets", "surfaces"]
