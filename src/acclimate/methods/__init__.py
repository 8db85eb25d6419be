"""One short file for each paper; the list of methods is made from the files in this folder."""

from acclimate.training.method import Method, get, lookup, names, register

__all__ = ["Method", "get", "lookup", "names", "register"]
