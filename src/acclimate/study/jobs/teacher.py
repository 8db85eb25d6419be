"""Teacher jobs: fine-tuned models that are saved for distillation."""

from __future__ import annotations

from typing import ClassVar

from acclimate.study.job import Place, register
from acclimate.study.jobs.finetune import FinetuneJob


@register("teacher", summary="fine-tune the teacher of a distillation and keep it")
class TeacherJob(FinetuneJob):
    """Fine-tune a model on a task and save it; all students with the same teacher share it."""

    makes_model: ClassVar[bool] = True
    counts_as_score: ClassVar[bool] = False

    @classmethod
    def is_used(cls, config: object) -> bool:
        """Return that it is not: distillations add their teachers, and their rows have the scores of these."""
        return False

    def as_trial(self, place: Place) -> FinetuneJob:
        """Return the same fine-tuning without saving the model, with the seed of ``place``."""
        return FinetuneJob(
            place=place,
            model=self.model,
            task=self.task,
            settings=self.settings,
            seed=place.seed or 0,
            options=self.options,
        )
