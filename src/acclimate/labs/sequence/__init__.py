"""Adaptation to one domain after the other."""
