"""Relation prediction over a taxonomy beside masked language modelling (ESCOXLM-R, Zhang et al., ACL 2023)."""
