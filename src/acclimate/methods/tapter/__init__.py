"""TAPTER: word embeddings pulled towards fastText vectors of the same text (Nishida et al., Findings of EMNLP 2021)."""

from acclimate.methods.tapter.method import TAPTER

__all__ = ["TAPTER"]
