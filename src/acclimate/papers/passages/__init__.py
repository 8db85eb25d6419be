"""Passages on the entities of a task (TOP-Training, Sengupta et al., 2023), generated or retrieved."""
