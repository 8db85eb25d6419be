"""Forgetting meters: cheap measurements of an adapted model, and how well they predict forgetting."""
