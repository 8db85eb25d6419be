"""Inspections of models and text: importance, embeddings, masking, contamination and more."""
