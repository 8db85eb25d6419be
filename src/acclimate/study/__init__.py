"""A study: models x methods x tasks x seeds as cells that are computed once, then results and a report."""

from acclimate.study.compare import compare
from acclimate.study.config import (
    AdaptSettings,
    DomainSpec,
    EvaluateSettings,
    FinetuneSettings,
    MethodSpec,
    ModelSpec,
    StudyConfig,
    TaskSpec,
)
from acclimate.study.parts import Parts

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
