"""Changes to the network that fold away on export: learned vectors that are read as tokens."""

from acclimate.modules.virtual_tokens import add_virtual_tokens, virtual_ids

__all__ = ["add_virtual_tokens", "virtual_ids"]
