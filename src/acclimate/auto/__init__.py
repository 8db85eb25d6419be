"""A race of adaptations under a budget, and one claim about its winner."""

from acclimate.auto.tournament import auto

__all__ = ["auto"]
