"""Gated domain adapters next to the feed-forward blocks of a frozen model (MixDA; Diao et al., ACL 2023)."""
