"""Labelled end tasks: reading them, fine-tuning a model on them, and evaluating it."""
