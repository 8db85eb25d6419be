"""A study that runs as it is: a bundled model, text that is already on the machine, a report in minutes."""

from acclimate.demo.comparison import demo

__all__ = ["demo"]
