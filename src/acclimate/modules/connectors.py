"""What brings the representations of two models of different width together while one learns from the other."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from acclimate.errors import UserError, unknown_name_error

ConnectorKind = Literal["auto", "none", "teacher", "student"]
TEACHER_BIAS = 0.01
"""Of the projection of the teacher, as in the released code of DoKTra."""


def check_connector(kind: str) -> None:
    """Raise UserError for a kind of connector that is not known."""
    if kind not in get_args(ConnectorKind):
        raise unknown_name_error("connector", kind, get_args(ConnectorKind))


class Connectors(nn.Module):
    """A projection of one of the two models; the other is read as it is. It is used in training only.

    Attributes:
        kind: What ``"auto"`` became: ``"none"``, ``"teacher"`` or ``"student"``.
        teacher: Applied to the teacher's representations (examples, width of the teacher).
        student: Applied to those of the student (examples, width of the student).
        units: Width of what is compared.
    """

    def __init__(self, kind: ConnectorKind, teacher_width: int, student_width: int, seed: int) -> None:
        """Draw the projection; torch's global generator is left alone.

        Args:
            kind: ``"teacher"``: a frozen random projection of the teacher to the student's width, Xavier-uniform, as
                in the released code of DoKTra: what is distilled are the signs of random combinations of its units,
                and every unit of the student learns. ``"student"``: a learned projection of the student to the
                teacher's width, as in the paper on activation boundaries (Heo et al., 2019), without its batch
                normalisation, for the last layer of an encoder is normalised: the signs are the teacher's own, but
                the projection may learn what the student then does not. ``"none"``: the widths are the same.
                ``"auto"``: none where the widths agree, else the teacher's: with these the results of the paper
                were made.
            teacher_width: Units of the teacher.
            student_width: Units of the student.
            seed: Of the draw.

        Raises:
            UserError: If the kind is not known, or is ``"none"`` and the widths differ.
        """
        super().__init__()
        check_connector(kind)
        if kind == "auto":
            kind = "none" if teacher_width == student_width else "teacher"
        if kind == "none" and teacher_width != student_width:
            raise UserError(
                f"The teacher has {teacher_width} units and the student {student_width}: the connector cannot be "
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
