"""Moving what a teacher knows about a task into a student of another architecture (DoKTra, Choi et al., 2022)."""

from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.distillation.result import DistillResult

__all__ = ["DistillResult", "distill"]
