"""Vectors of a knowledge graph in the input of a model, at the mentions of their entities (Sengupta et al., 2024)."""
