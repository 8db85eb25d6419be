"""Adaptation methods, one file or folder per paper; every module here is imported and registers its methods."""

from acclimate.training.method import Method, get, lookup, names, register

__all__ = ["Method", "get", "lookup", "names", "register"]
