"""Paired comparison of finished evaluations, also by other tools, over items, seeds and adaptations."""
