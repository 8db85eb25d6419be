"""A race of adaptations under a budget, and the claim about its winner."""
