"""Weights from the alignment of the sources' gradients (DoGE, Fan et al., ICML 2024)."""
