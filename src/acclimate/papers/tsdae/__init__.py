"""TSDAE: texts are reconstructed from their sentence vectors (Wang et al., Findings of EMNLP 2021)."""
