"""Contrast of texts that share a code, with a feed-forward per domain (Hallee et al., 2024)."""
