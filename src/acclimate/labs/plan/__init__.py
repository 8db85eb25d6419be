"""Plans of a training from smaller ones: share of domain text, schedule, budget."""
