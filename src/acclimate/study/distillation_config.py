"""The ``distill`` section of a study file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from acclimate.study.settings import DistillLists, DistillSection, Strict, several


class TeacherSpec(Strict):
    """A teacher: a model of the study after one of its methods, ``{model, method?}``, or any model, ``{path}``."""

    model: str | None = None
    method: str = "none"
    path: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _one(self) -> TeacherSpec:
        if (self.model is None) == (self.path is None):
            raise ValueError(
                "a teacher is {model: NAME, method: LABEL} of this study or {path: FOLDER}: give one of them"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the teacher in labels."""
        return Path(self.path).name if self.path else f"{self.model}, {self.method}"


class DistillSpec(DistillSection):
    """A row of a study whose students are distilled from a teacher: ``{teacher, label?, students?, **settings}``.

    Other keys are settings of :func:`acclimate.distill`. Teacher and student are fine-tuned with the study's settings
    of fine-tuning unless these settings override them.

    Attributes:
        teacher: The teacher.
        label: Row label in the tables.
        students: Names of models of the study; None for all but the teacher's.
        domains: Names of the domains that the row is for; None for all.
        search: Values to try for settings of this row, in place of those under ``search.distill``.
    """

    teacher: TeacherSpec
    label: str = ""
    students: Annotated[list[str] | None, BeforeValidator(several), Field(min_length=1)] = None
    domains: Annotated[list[str] | None, BeforeValidator(several), Field(min_length=1)] = None
    search: DistillLists | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of distillation, without defaults."""
        return self.given()

    def student_names(self, models: Sequence[str]) -> list[str]:
        """Return the names of the students; ``models`` are those of the study."""
        return self.students or [model for model in models if model != self.teacher.model]

    def is_for(self, domain: str) -> bool:
        """Return whether the row is for a domain."""
        return self.domains is None or domain in self.domains

    @model_validator(mode="after")
    def _labelled(self) -> DistillSpec:
        shown = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        self.label = self.label or f"distilled from {self.teacher.name}" + (f" ({shown})" if shown else "")
        return self
