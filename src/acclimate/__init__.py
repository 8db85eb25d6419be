"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from acclimate.base.version import __version__

if TYPE_CHECKING:
    from acclimate.adaptation.adapt import adapt
    from acclimate.adaptation.corpus_verbs import select, transform
    from acclimate.adaptation.pretrain import pretrain
    from acclimate.cards.hub import push_to_hub
    from acclimate.evaluation.benchmarks import inspect_benchmarks
    from acclimate.evaluation.instructions import inspect_instructions
    from acclimate.labs.advise.advice import advise
    from acclimate.labs.auto.auto import auto
    from acclimate.labs.inspection.embeddings import inspect_embeddings
    from acclimate.labs.inspection.importance import inspect_importance
    from acclimate.labs.inspection.leakage import inspect_leakage
    from acclimate.labs.inspection.model import inspect_model
    from acclimate.labs.periods.gap import temporal_gap
    from acclimate.labs.periods.questions import temporal_questions
    from acclimate.labs.periods.self_training import temporal_self_training
    from acclimate.labs.periods.split import split_periods
    from acclimate.labs.periods.surprisal import temporal_surprisal
    from acclimate.labs.plan.pilots import plan_budget, plan_ratio, plan_schedule
    from acclimate.labs.sequence.run import sequence
    from acclimate.merging.merge import merge
    from acclimate.study.compare import compare
    from acclimate.tasks.distillation.distill import distill
    from acclimate.tasks.finetune import finetune
    from acclimate.tasks.kinds.retrieval.generation import generate_queries
    from acclimate.tasks.prediction import predict
    from acclimate.tasks.probing import probe

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
    "predict",
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
    "adapt": "acclimate.adaptation.adapt",
    "advise": "acclimate.labs.advise.advice",
    "auto": "acclimate.labs.auto.auto",
    "compare": "acclimate.study.compare",
    "distill": "acclimate.tasks.distillation.distill",
    "finetune": "acclimate.tasks.finetune",
    "generate_queries": "acclimate.tasks.kinds.retrieval.generation",
    "inspect_benchmarks": "acclimate.evaluation.benchmarks",
    "inspect_embeddings": "acclimate.labs.inspection.embeddings",
    "inspect_importance": "acclimate.labs.inspection.importance",
    "inspect_instructions": "acclimate.evaluation.instructions",
    "inspect_leakage": "acclimate.labs.inspection.leakage",
    "inspect_model": "acclimate.labs.inspection.model",
    "merge": "acclimate.merging.merge",
    "plan_budget": "acclimate.labs.plan.pilots",
    "plan_ratio": "acclimate.labs.plan.pilots",
    "plan_schedule": "acclimate.labs.plan.pilots",
    "predict": "acclimate.tasks.prediction",
    "pretrain": "acclimate.adaptation.pretrain",
    "probe": "acclimate.tasks.probing",
    "push_to_hub": "acclimate.cards.hub",
    "select": "acclimate.adaptation.corpus_verbs",
    "sequence": "acclimate.labs.sequence.run",
    "split_periods": "acclimate.labs.periods.split",
    "temporal_gap": "acclimate.labs.periods.gap",
    "temporal_questions": "acclimate.labs.periods.questions",
    "temporal_self_training": "acclimate.labs.periods.self_training",
    "temporal_surprisal": "acclimate.labs.periods.surprisal",
    "transform": "acclimate.adaptation.corpus_verbs",
}


def __getattr__(name: str) -> Any:
    """Import a public function on first access, so that ``import acclimate`` stays fast."""
    if name in _EXPORT_MODULES:
        return getattr(import_module(_EXPORT_MODULES[name]), name)
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public functions, for completion in notebooks and for ``help``."""
    return __all__
