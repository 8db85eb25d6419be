"""Methods by the path that they take through a training: the quick tests train one method of each path."""

from __future__ import annotations

import pytest

ALIKE = {
    "lm": ("mlm", "tapt"),  # the loss of the language model alone
    "dga": ("das",),  # gates, a contrast of two readings, an update rule
    "ewc": ("der++",),  # what is left for the next adaptation
    "infoword": ("tacl", "taco"),  # a contrast over a masked view
    "kd": ("lssd", "talr"),  # a loss over a reference
    "memory": ("similarity-kd", "teachers"),  # other models that read the texts
    "mixda": ("adapter", "entity-vectors"),  # layers that the model keeps
    "pivots": ("selective",),  # masking that a task decides
    "prompt": ("deit", "hyper-prompt"),  # virtual tokens
    "relations": ("corruption", "dann", "fastdoc", "muppet"),  # examples drawn from labelled data
    "self-distill": ("dapt+tapt",),  # stages
    "simcse": ("experts", "pairs", "tsdae"),  # vectors of sentences
}
"""For the method that stands for a path, the others that take it. A method that is not here stands for its own."""
OTHERS = frozenset(other for alike in ALIKE.values() for other in alike)


def marked(methods) -> list:
    """Return parameters for some methods; those for which another stands are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in OTHERS else ()) for name in methods]
