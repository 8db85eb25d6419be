"""A race of adaptations under a budget, and one claim about its winner."""
