"""Studies: run a grid of models, methods, tasks and seeds as cached jobs, and write results and a report."""

from acclimate.study.backend import Backend
from acclimate.study.compare import compare
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.settings import AdaptSettings, EvaluateSettings, FinetuneSettings, TaskSpec

__all__ = [
    "AdaptSettings",
    "Backend",
    "DomainSpec",
    "EvaluateSettings",
    "FinetuneSettings",
    "MethodSpec",
    "ModelSpec",
    "StudyConfig",
    "TaskSpec",
    "compare",
]
