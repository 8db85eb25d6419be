"""Projections between teacher and student."""

from __future__ import annotations

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.parts.modules.connectors import TEACHER_BIAS, Connectors


def test_the_projection_of_the_teacher_is_frozen_and_follows_the_seed():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, same, other = (Connectors("auto", 6, 4, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (one.kind, one.units) == ("teacher", 4)
    assert not any(value.requires_grad for value in one.parameters())
    assert torch.equal(one.teacher.weight, same.teacher.weight)
    assert not torch.equal(one.teacher.weight, other.teacher.weight)
    assert one.teacher.weight.abs().max() <= (6 / (6 + 4)) ** 0.5  # Xavier-uniform
    assert one.teacher.bias.tolist() == pytest.approx([TEACHER_BIAS] * 4)
    states = torch.randn(2, 4)
    assert one.student(states) is states


def test_the_projection_of_the_student_is_trained():
    connectors = Connectors("student", 6, 4, 0)
    assert (connectors.kind, connectors.units) == ("student", 6)
    assert connectors.student(torch.randn(2, 4)).shape == (2, 6)
    assert all(value.requires_grad for value in connectors.parameters())


def test_equal_widths_need_no_projection():
    connectors = Connectors("auto", 4, 4, 0)
    assert (connectors.kind, connectors.units, list(connectors.parameters())) == ("none", 4, [])
    assert Connectors("teacher", 4, 4, 0).kind == "teacher"


def test_mistakes_are_refused():
    with pytest.raises(UserError, match="6 units and the student 4"):
        Connectors("none", 6, 4, 0)
    with pytest.raises(UserError, match=r"Unknown connector 'techer'\. Did you mean 'teacher'"):
        Connectors("techer", 6, 4, 0)
