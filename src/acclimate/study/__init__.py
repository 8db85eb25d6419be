"""A study: models x methods x tasks x seeds as cells that are computed once, then results and a report."""

from acclimate.study.compare import compare
from acclimate.study.config import DomainSpec, MethodSpec, ModelSpec, StudyConfig
from acclimate.study.parts import Parts
from acclimate.study.settings import AdaptSettings, EvaluateSettings, FinetuneSettings, TaskSpec

__all__ = [
    "AdaptSettings",
    "DomainSpec",
    "EvaluateSettings",
    "FinetuneSettings",
    "MethodSpec",
    "ModelSpec",
    "Parts",
    "StudyConfig",
    "TaskSpec",
    "compare",
]
