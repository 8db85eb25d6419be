"""The engine, the trainer around it, and adaptation from files to a model folder."""

from acclimate.training.adapt import AdaptResult, adapt, ensure_head
from acclimate.training.engine import Engine
from acclimate.training.inputs import Budget
from acclimate.training.method import (
    AdaptContext,
    Method,
    cache_folder,
    get,
    names,
    register,
)
from acclimate.training.pretrain import pretrain

__all__ = [
    "AdaptContext",
    "AdaptResult",
    "Budget",
    "Engine",
    "Method",
    "adapt",
    "cache_folder",
    "ensure_head",
    "get",
    "names",
    "pretrain",
    "register",
]
