"""Pseudo-labels with a distillation of similarities (after "Similarity-Based Domain Adaptation with LLMs")."""
