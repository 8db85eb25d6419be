"""Relation prediction over a taxonomy next to masked language modelling (ESCOXLM-R, Zhang et al., ACL 2023)."""
