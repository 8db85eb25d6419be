"""Texts of the task next to their nearest neighbors in the corpus (ICL-APT, Zhukova et al., 2025)."""
