"""Weights from an agent: any function from the state of the training to weights."""
