"""Studies: run a grid of models, methods, tasks and seeds as cached jobs, and write results and a report."""
