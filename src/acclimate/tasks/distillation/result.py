"""What a distillation measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acclimate.tasks.result import FinetuneResult


@dataclass(frozen=True, kw_only=True)
class DistillResult(FinetuneResult):
    """What a distillation measured.

    ``seconds`` is by the clock of the call, without what the cache held; ``epoch``, ``steps`` and ``train_loss`` count
    both phases.
    """

    objective: str
    connector: str
    """What ``"auto"`` became."""
    distilled_epochs: int
    """Epochs of the first phase."""
    disagreement: list[float]
    """Eq. 4 of DoKTra: how many units are active in only one of the models, a mean over up to 512 train examples,
    without dropout: before the first step, then after each epoch of both phases."""
    units: int
    """How many units there are to disagree on."""
    teacher_metrics: dict[str, Any]
    """Of the teacher on the test split."""
    teacher_dev_metrics: dict[str, Any] | None
    teacher_trained: bool
    """Whether the teacher was fine-tuned here."""
    student_metrics: dict[str, Any]
    """Of the student on the test split, before distillation."""
    student_dev_metrics: dict[str, Any] | None
    stage_seconds: dict[str, float]
    """Seconds of ``teacher`` and ``student`` (their fine-tuning, zero if they knew the task), ``signs`` (reading the
    train split with the teacher, once) and ``distillation`` (both phases). What came from the cache has the seconds of
    when it was made, so their sum may be more than ``seconds``."""
