"""A contrast between two dropout masks of the same text (Gao et al., EMNLP 2021), with language modelling or alone."""
