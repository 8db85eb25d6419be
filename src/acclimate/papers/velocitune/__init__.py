"""Weights from how far each source is from the loss that it can reach (Velocitune, Luo et al., ACL 2025)."""
