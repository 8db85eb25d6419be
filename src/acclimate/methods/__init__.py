"""Adaptation methods, one file or folder per paper; every module here is imported and registers its methods."""

from acclimate.training.method import (
    Method,
    current_name,
    get,
    lookup,
    names,
    oldest_name,
    register,
)

__all__ = ["Method", "current_name", "get", "lookup", "names", "oldest_name", "register"]
