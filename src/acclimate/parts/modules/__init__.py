"""Additions to a network during training: learned vectors that are read as tokens, and projections."""

from acclimate.models.loading import virtual_ids
from acclimate.parts.modules.virtual_tokens import add_virtual_tokens

__all__ = ["add_virtual_tokens", "virtual_ids"]
