"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acclimate.version import __version__

if TYPE_CHECKING:
    from acclimate.analysis import inspect_embeddings, inspect_importance
    from acclimate.analysis.advice import advise
    from acclimate.analysis.leakage import inspect_leakage
    from acclimate.cards import push_to_hub
    from acclimate.study import compare
    from acclimate.tasks import distill, finetune
    from acclimate.training import adapt, pretrain

__all__ = [
    "__version__",
    "adapt",
    "advise",
    "compare",
    "distill",
    "finetune",
    "inspect_embeddings",
    "inspect_importance",
    "inspect_leakage",
    "pretrain",
    "push_to_hub",
]

_HOMES = {
    "adapt": "acclimate.training",
    "advise": "acclimate.analysis.advice",
    "push_to_hub": "acclimate.cards",
    "pretrain": "acclimate.training",
    "distill": "acclimate.tasks",
    "finetune": "acclimate.tasks",
    "compare": "acclimate.study",
    "inspect_embeddings": "acclimate.analysis",
    "inspect_importance": "acclimate.analysis",
    "inspect_leakage": "acclimate.analysis.leakage",
}


def __getattr__(name: str) -> Any:
    """Import a verb when it is first asked for, so that ``import acclimate`` stays quick."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")
