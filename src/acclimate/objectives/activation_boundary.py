"""Which units of a representation are active, in teacher and student (Heo et al., 2019; DoKTra, Choi et al., 2022)."""

from __future__ import annotations

from torch import Tensor


def activation_boundary(student: Tensor, active: Tensor, margin: float = 1.0, scale: float = 1e-3) -> Tensor:
    """Return Eq. 5 of DoKTra: how far the units of the student are from the teacher's side of zero, with a margin.

    ``L(x) = || rho(t) * relu(margin - s) + (1 - rho(t)) * relu(margin + s) ||_2^2``, where rho is 1 above zero and 0
    at or below it; the mean over examples. So a unit costs ``(margin - s)^2`` where the teacher's is active and s is
    below the margin, ``(margin + s)^2`` where it is not and s is above minus the margin, and nothing else.

    Args:
        student: Representations (examples, units).
        active: Which units of the teacher are above zero, as booleans (examples, units).
        margin: The paper's mu.
        scale: Factor of the loss. The squared norm is a sum over units, some hundreds at the start; the released code
            of both papers multiplies it with 0.001. While this loss is the only one, the steps of Adam do not depend
            on the factor: it decides how often the gradient is clipped, and what Adam still remembers of its size when
            another loss follows.

    Returns:
        A scalar. It is a mean over the examples that are there: the released code divides by the size of a full
        batch, which gives a short last batch less weight.
    """
    student = student.float()
    signed = student.where(active, -student)
    return scale * (margin - signed).relu().square().sum(-1).mean()


def disagreement(student: Tensor, active: Tensor) -> Tensor:
    """Return Eq. 4 of DoKTra: for each example, the number of units that are active in only one of the two models.

    Args:
        student: Representations (examples, units).
        active: As in :func:`activation_boundary`.

    Returns:
        Whole numbers (examples,). It has no gradient; Eq. 5 stands in for it in training.
    """
    return ((student > 0) != active).sum(-1)
