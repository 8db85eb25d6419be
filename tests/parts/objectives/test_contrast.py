"""Equation 15 of DGA against a plain loop."""

from __future__ import annotations

import math

import torch

from acclimate.parts.objectives import contrastive_loss, mean_pool


def reference(anchor, positive, negative, temperature):
    """Eq. 15 in plain loops."""

    def sim(a, b):
        return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())

    losses = []
    for m in range(len(anchor)):
        numerator = torch.exp(sim(anchor[m], positive[m]) / temperature)
        denominator = sum(
            torch.exp(sim(anchor[m], positive[j]) / temperature) + torch.exp(sim(anchor[m], negative[j]) / temperature)
            for j in range(len(anchor))
        )
        losses.append(-torch.log(numerator / denominator))
    return torch.stack(losses).mean()


def test_equals_equation_15_in_value_and_gradient():
    torch.manual_seed(0)
    fast = [torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    slow = [part.detach().clone().requires_grad_() for part in fast]
    ours, theirs = contrastive_loss(*fast, 0.3), reference(*slow, 0.3)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_positives_belong_to_their_anchor():
    """With identical anchor and positive and orthogonal texts, one cosine of 1 competes with cosines of 0."""
    eye = torch.eye(4)
    expected = -math.log(math.exp(1 / 0.05) / (math.exp(1 / 0.05) + 3))
    assert math.isclose(contrastive_loss(eye, eye, None, 0.05).item(), expected, abs_tol=1e-6)
    assert contrastive_loss(eye, eye.roll(1, 0), None, 0.05) > 10


def test_mean_pool_ignores_padding_and_keeps_packed_texts_apart():
    hidden = torch.arange(12.0).view(1, 6, 2)
    text = torch.tensor([[0, 0, 1, 1, 1, -1]])
    pooled = mean_pool(hidden, text, 2)
    torch.testing.assert_close(pooled, torch.stack([hidden[0, :2].mean(0), hidden[0, 2:5].mean(0)]))
