"""Merging of models that come from one base model, without training."""
