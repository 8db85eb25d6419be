"""TAPTER: adaptation that draws word embeddings to fastText vectors of the text (Nishida et al., EMNLP 2021)."""

from acclimate.methods.tapter.method import TAPTER

__all__ = ["TAPTER"]
