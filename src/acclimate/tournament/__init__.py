"""A race of adaptations under a budget, and one claim about its winner."""

from acclimate.tournament.auto import auto

__all__ = ["auto"]
