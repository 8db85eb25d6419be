"""Contrast of texts that share metadata, such as papers that are cited together (after Hallee et al., 2024)."""
