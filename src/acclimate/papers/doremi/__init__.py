"""Weights from the loss in excess of a reference model (DoReMi, Xie et al., NeurIPS 2023)."""
