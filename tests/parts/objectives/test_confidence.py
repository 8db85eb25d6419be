"""The confidence penalty and the divergence of predictions, one class at a time."""

from __future__ import annotations

import math

import pytest
import torch

from acclimate.parts.objectives.distillation import confidence_penalty, entropy, soft_target_loss
from tests.cases import each


def draw(seed):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).mul(2).requires_grad_()


def distributions(row, several):
    """The distributions of an example: one over all classes, or one over {yes, no} for each class."""
    if several:
        return [[1 / (1 + torch.exp(-value)), 1 / (1 + torch.exp(value))] for value in row]
    total = sum(torch.exp(value) for value in row)
    return [[torch.exp(value) / total for value in row]]


@each("several", [False, True])
def test_the_penalty_is_the_entropy(several):
    logits = draw(0)
    entropies = [-sum(p * p.log() for group in distributions(row, several) for p in group) for row in logits]
    torch.testing.assert_close(entropy(logits, several), torch.stack(entropies))
    slow = -0.3 * sum(entropies) / len(entropies) / (3 if several else 1)
    ours = confidence_penalty(logits, 0.3, several)
    torch.testing.assert_close(ours, slow)
    torch.testing.assert_close(torch.autograd.grad(ours, logits)[0], torch.autograd.grad(slow, logits)[0])


@each("several", [False, True])
def test_certain_and_uncertain_predictions(several):
    assert entropy(torch.zeros(1, 4), several).item() == pytest.approx(4 * math.log(2) if several else math.log(4))
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    assert entropy(logits, several).item() == 0
    confidence_penalty(logits, 1.0, several).backward()
    assert logits.grad.isfinite().all()


@each("several", [False, True])
@each("temperature", [1.0, 2.5])
def test_the_reference(several, temperature):
    student, teacher = draw(1), draw(2).detach()
    slow = 0.0
    for ours, theirs in zip(student, teacher, strict=True):
        pairs = zip(
            distributions(ours / temperature, several), distributions(theirs / temperature, several), strict=True
        )
        slow = slow + sum(p * (p.log() - q.log()) for qs, ps in pairs for q, p in zip(qs, ps, strict=True))
    slow = temperature**2 * slow / len(student)
    loss = soft_target_loss(student, teacher, temperature, several)
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(torch.autograd.grad(loss, student)[0], torch.autograd.grad(slow, student)[0])
    assert soft_target_loss(student, student, temperature, several).abs() < 1e-6
