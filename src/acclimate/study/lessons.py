"""What a study file says about distillation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from acclimate.registry import parse_number
from acclimate.study.settings import Lists, Strict, several


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
            raise ValueError("a teacher is {model: NAME, method: LABEL} of this study, or {path: FOLDER}: give one")
        return self

    @property
    def name(self) -> str:
        """What people call it."""
        return Path(self.path).name if self.path else f"{self.model}, {self.method}"


class DistillSpec(BaseModel):
    """A row of a study whose students learn each task from a teacher: ``{teacher, label?, students?, **settings}``.

    Attributes:
        teacher: Where the knowledge of the domain comes from.
        label: What the row is called.
        students: Names of models of the study; None: all but the teacher's.
        domains: Names of the domains that the row is for; None: all.
        search: Values to try of settings of this row, in place of those that the study's ``search`` has under
            ``distill``.

    Other keys are settings of :func:`acclimate.distill`. What the study says about fine-tuning holds for the
    fine-tuning of the teacher and of the student, unless these settings say otherwise.
    """

    model_config = ConfigDict(extra="allow")
    teacher: TeacherSpec
    label: str = ""
    students: Annotated[list[str] | None, BeforeValidator(several), Field(min_length=1)] = None
    domains: Annotated[list[str] | None, BeforeValidator(several), Field(min_length=1)] = None
    search: Lists | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of distillation that were given."""
        return {name: parse_number(value) for name, value in (self.model_extra or {}).items()}

    def taught(self, models: Sequence[str]) -> list[str]:
        """Return the names of the students; ``models`` are those of the study."""
        return self.students or [model for model in models if model != self.teacher.model]

    def is_for(self, domain: str) -> bool:
        """Say whether the row is for a domain."""
        return self.domains is None or domain in self.domains

    @model_validator(mode="after")
    def _labelled(self) -> DistillSpec:
        shown = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        self.label = self.label or f"distilled from {self.teacher.name}" + (f" ({shown})" if shown else "")
        return self
