"""Texts of the task beside their nearest neighbors in the corpus (ICL-APT, Zhukova et al., 2025)."""
