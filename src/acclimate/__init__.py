"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from acclimate.version import __version__

if TYPE_CHECKING:
    from acclimate.cards import push_to_hub
    from acclimate.inspect import inspect_embeddings, inspect_importance
    from acclimate.inspect.leakage import inspect_leakage
    from acclimate.inspect.model import inspect_model
    from acclimate.merging import merge
    from acclimate.periods import (
        split_periods,
        temporal_gap,
        temporal_questions,
        temporal_self_training,
        temporal_surprisal,
    )
    from acclimate.planning.advice import advise
    from acclimate.study.compare import compare
    from acclimate.study.pilots import plan_budget, plan_ratio, plan_schedule
    from acclimate.study.run_sequence import sequence
    from acclimate.tasks import distill, finetune, generate_queries, probe
    from acclimate.tournament.auto import auto
    from acclimate.training import adapt, pretrain
    from acclimate.training.selection import select, transform

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm, imported in a notebook without ipywidgets

__all__ = [
    "__version__",
    "adapt",
    "advise",
    "auto",
    "compare",
    "distill",
    "finetune",
    "generate_queries",
    "inspect_benchmarks",
    "inspect_embeddings",
    "inspect_importance",
    "inspect_instructions",
    "inspect_leakage",
    "inspect_model",
    "merge",
    "plan_budget",
    "plan_ratio",
    "plan_schedule",
    "pretrain",
    "probe",
    "push_to_hub",
    "select",
    "sequence",
    "split_periods",
    "temporal_gap",
    "temporal_questions",
    "temporal_self_training",
    "temporal_surprisal",
    "transform",
]

_EXPORT_MODULES = {
    "adapt": "acclimate.training",
    "advise": "acclimate.planning.advice",
    "auto": "acclimate.tournament.auto",
    "push_to_hub": "acclimate.cards",
    "pretrain": "acclimate.training",
    "distill": "acclimate.tasks",
    "finetune": "acclimate.tasks",
    "generate_queries": "acclimate.tasks",
    "probe": "acclimate.tasks",
    "compare": "acclimate.study.compare",
    "inspect_benchmarks": "acclimate.evaluation.benchmarks",
    "inspect_embeddings": "acclimate.inspect",
    "inspect_importance": "acclimate.inspect",
    "inspect_instructions": "acclimate.evaluation.instructions",
    "inspect_leakage": "acclimate.inspect.leakage",
    "inspect_model": "acclimate.inspect.model",
    "merge": "acclimate.merging",
    "plan_budget": "acclimate.study.pilots",
    "plan_ratio": "acclimate.study.pilots",
    "plan_schedule": "acclimate.study.pilots",
    "select": "acclimate.training.selection",
    "sequence": "acclimate.study.run_sequence",
    "split_periods": "acclimate.periods",
    "temporal_gap": "acclimate.periods",
    "temporal_questions": "acclimate.periods",
    "temporal_self_training": "acclimate.periods",
    "temporal_surprisal": "acclimate.periods",
    "transform": "acclimate.training.selection",
}


def __getattr__(name: str) -> Any:
    """Import a public function on first access, so that ``import acclimate`` stays fast."""
    if name in _EXPORT_MODULES:
        return getattr(import_module(_EXPORT_MODULES[name]), name)
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public functions, for completion in notebooks and for ``help``."""
    return __all__
