"""The activation boundary loss against its equation, one unit at a time."""

from __future__ import annotations

import torch

from acclimate.parts.objectives.distillation import activation_boundary_loss, count_disagreements
from tests.cases import each


def reference(student, teacher, margin, scale):
    """Eq. 5 with indicator functions: the mean over examples of the squared norm."""
    total = 0.0
    for ours, theirs in zip(student, teacher, strict=True):
        norm = 0.0
        for s, t in zip(ours, theirs, strict=True):
            rho = 1.0 if t > 0 else 0.0
            term = rho * torch.clamp(margin - s, min=0) + (1 - rho) * torch.clamp(margin + s, min=0)
            norm = norm + term**2
        total = total + norm
    return scale * total / len(student)


@each(("margin", "scale"), [(1.0, 1e-3), (0.3, 1.0), (0.0, 2.0)])
def test_equals_the_equation_in_value_and_gradient(margin, scale):
    chance = torch.Generator().manual_seed(0)
    student = torch.randn(5, 7, generator=chance).mul(1.5).requires_grad_()
    teacher = torch.randn(5, 7, generator=chance)
    teacher[0, :3] = 0.0  # zero is not active
    ours, slow = (
        activation_boundary_loss(student, teacher > 0, margin, scale),
        reference(student, teacher, margin, scale),
    )
    torch.testing.assert_close(ours, slow)
    assert ours > 0
    torch.testing.assert_close(torch.autograd.grad(ours, student)[0], torch.autograd.grad(slow, student)[0])


def test_the_gradient_is_that_of_the_released_cases():
    # (s + m)^2 where s > -m and t <= 0; (s - m)^2 where s <= m and t > 0; nothing elsewhere.
    student = torch.tensor([[-2.0, -0.5, 0.5, 2.0], [-2.0, -0.5, 0.5, 2.0]], requires_grad=True)
    active = torch.tensor([[False] * 4, [True] * 4])
    activation_boundary_loss(student, active, margin=1.0, scale=1.0).backward()
    expected = torch.tensor([[0.0, 1.0, 3.0, 6.0], [-6.0, -3.0, -1.0, 0.0]]) / 2  # the mean over two examples
    torch.testing.assert_close(student.grad, expected)


def test_an_example_has_the_same_weight_in_a_batch_of_any_size():
    chance = torch.Generator().manual_seed(1)
    student, active = torch.randn(6, 4, generator=chance), torch.randn(6, 4, generator=chance) > 0
    alone = torch.stack([activation_boundary_loss(student[[n]], active[[n]]) for n in range(6)])
    torch.testing.assert_close(activation_boundary_loss(student, active), alone.mean())


def test_disagreement_counts_units():
    student = torch.tensor([[1.0, -1.0, 0.0, 2.0], [-1.0, -1.0, 3.0, 0.1]])
    active = torch.tensor([[True, True, True, False], [False, False, True, True]])
    assert count_disagreements(student, active).tolist() == [3, 0]
