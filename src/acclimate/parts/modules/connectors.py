"""Projections between the representations of a teacher and a student of different width."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from acclimate.base.errors import UserError, unknown_name_error

ConnectorKind = Literal["auto", "none", "teacher", "student"]
TEACHER_BIAS = 0.01
"""Bias of the teacher's projection, as in the released code of DoKTra."""


def check_connector(kind: str) -> None:
    """Raise UserError for an unknown kind of connector."""
    if kind not in get_args(ConnectorKind):
        raise unknown_name_error("connector", kind, get_args(ConnectorKind))


class Connectors(nn.Module):
    """A projection of one of the two models, used only in training.

    Attributes:
        kind: ``"none"``, ``"teacher"`` or ``"student"``; ``"auto"`` is resolved to one of these.
        teacher: Applied to the representations of the teacher (examples, teacher width).
        student: Applied to the student's (examples, student width).
        units: Width of the compared representations.
    """

    def __init__(self, kind: ConnectorKind, teacher_width: int, student_width: int, seed: int) -> None:
        """Initialize the projection without torch's global generator.

        Args:
            kind: ``"teacher"`` is a frozen random projection (Xavier-uniform) of the teacher to the student's width,
                as in the released code of DoKTra: signs of random combinations of its units are distilled, into every
                unit of the student. ``"student"`` is a trained projection of the student to the teacher's width, as
                in Heo et al. (2019), but without batch normalization, since the last layer of an encoder is
                normalized: the signs come from the teacher's units, but the projection may learn what the student
                should learn. ``"none"`` needs equal widths. ``"auto"`` is ``"none"`` for equal widths and
                ``"teacher"`` otherwise, as for the results of the paper.
            teacher_width: Units of the teacher.
            student_width: Units of the student.
            seed: Random seed.

        Raises:
            UserError: If the kind is unknown, or is ``"none"`` and the widths differ.
        """
        super().__init__()
        check_connector(kind)
        if kind == "auto":
            kind = "none" if teacher_width == student_width else "teacher"
        if kind == "none" and teacher_width != student_width:
            raise UserError(
                f"The teacher has {teacher_width} units and the student {student_width}, so the connector cannot be "
                "'none'; use 'teacher' or 'student'."
            )
        self.kind = kind
        self.teacher: nn.Module = nn.Identity()
        self.student: nn.Module = nn.Identity()
        self.units = teacher_width if kind == "student" else student_width
        if kind == "none":
            return
        reads = teacher_width if kind == "teacher" else student_width
        projection = nn.utils.skip_init(nn.Linear, reads, self.units)
        nn.init.xavier_uniform_(projection.weight, generator=torch.Generator().manual_seed(seed))
        if kind == "teacher":
            nn.init.constant_(projection.bias, TEACHER_BIAS)
            self.teacher = projection.requires_grad_(False)
        else:
            nn.init.zeros_(projection.bias)
            self.student = projection
