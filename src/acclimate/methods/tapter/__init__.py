"""TAPTER: language modelling that pulls word embeddings towards fastText vectors of the same text (Nishida et al., 2021)."""

from acclimate.methods.tapter.method import TAPTER

__all__ = ["TAPTER"]
