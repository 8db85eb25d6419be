"""A complete study without any input: a bundled model, documentation of installed packages, a report in minutes."""

from acclimate.demo.comparison import demo

__all__ = ["demo"]
