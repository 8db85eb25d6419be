"""TAPTER: word embeddings are pulled towards fastText vectors of the same text (Nishida et al., EMNLP 2021)."""
