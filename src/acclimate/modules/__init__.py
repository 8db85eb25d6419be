"""Changes to the network: adapters, and learned vectors that are read as tokens."""

from acclimate.modules.adapters import adapter_size, add_adapters
from acclimate.modules.virtual_tokens import add_virtual_tokens, virtual_ids

__all__ = ["adapter_size", "add_adapters", "add_virtual_tokens", "virtual_ids"]
