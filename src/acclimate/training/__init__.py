"""The engine, the trainer around it, and adaptation from files to a model folder."""

from acclimate.training.adapt import AdaptResult, adapt
from acclimate.training.budget import Budget
from acclimate.training.engine import Engine
from acclimate.training.head import ensure_head
from acclimate.training.method import Method, get, names, register
from acclimate.training.pretrain import pretrain
from acclimate.training.run import Run, cache_folder

__all__ = [
    "AdaptResult",
    "Budget",
    "Engine",
    "Method",
    "Run",
    "adapt",
    "cache_folder",
    "ensure_head",
    "get",
    "names",
    "pretrain",
    "register",
]
