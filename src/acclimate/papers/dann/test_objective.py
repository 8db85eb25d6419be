"""The adversary: against plain loops, and in a real training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from acclimate.papers.dann.objective import DomainAdversary, reversal_factor, reverse_gradient
from tests.parts.objectives.drawn import DRAW, WIDTH, assert_layouts_change_nothing, mean, states_of
from tests.parts.objectives.layouts import padded


def test_the_adversary_learns_and_the_encoder_unlearns():
    """The classifier gets the gradient of its loss, the vectors the same times minus the factor."""
    torch.manual_seed(0)
    classifier = nn.Linear(WIDTH, 2)
    batch = padded(rewritings=(DRAW,))
    term = DomainAdversary(DRAW, classifier)
    term.progress = 0.3
    drawn, own, out = states_of(batch)
    slow = 0.0
    for label, domain in enumerate((drawn, own)):
        for vectors in domain:
            logits = classifier(mean(vectors).float())
            slow = slow - (logits[label].exp() / logits.exp().sum()).log()
    ours, theirs = term.total(out) / term.count(batch), slow / (2 * batch.texts)
    torch.testing.assert_close(ours, theirs)
    leaves = [*classifier.parameters(), *drawn, *own]
    for leaf, fast, plain in zip(
        leaves, torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True
    ):
        factor = 1 if leaf in set(classifier.parameters()) else -(2 / (1 + math.exp(-3)) - 1)
        torch.testing.assert_close(fast, factor * plain, atol=1e-6, rtol=1e-4)


def test_the_factor_rises_from_zero_to_one():
    assert reversal_factor(0) == 0 and abs(reversal_factor(0.1) - math.tanh(0.5)) < 1e-12
    assert 0.9999 < reversal_factor(1) < 1 and reversal_factor(0.5, 2.0) < reversal_factor(0.5)
    vector = torch.randn(3, requires_grad=True)
    assert torch.equal(reverse_gradient(vector, 0.25), vector)
    (reverse_gradient(vector, 0.25) * 2).sum().backward()
    torch.testing.assert_close(vector.grad, torch.full((3,), -0.5))


def share_between(vectors, groups):
    """The share of the variance of vectors that is between two groups of the same size."""
    means = torch.stack([vectors[groups == group].mean(0) for group in (0, 1)])
    return float((means.diff(dim=0) / 2).square().sum() / vectors.var(0).sum())


@pytest.mark.slow
def test_vectors_keep_the_label_and_lose_the_domain():
    """One feature shows the domain, one the label, and a decoder keeps both in the vectors, like a language model."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([[domain, label] for domain in (-1.0, 1.0) for label in (-1.0, 1.0)]).repeat(32, 1)
    inputs = signs + 0.5 * torch.randn(signs.shape, generator=generator)
    domain, label = (signs > 0).long().unbind(1)
    found = []
    for weight in (0.0, 0.3):
        torch.manual_seed(0)
        encoder, head, decoder = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        adversary = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        parts = nn.ModuleList([encoder, head, decoder, adversary])
        optimizer = torch.optim.Adam(parts.parameters(), lr=0.003)
        for step in range(300):
            vectors = encoder(inputs)
            hidden = reverse_gradient(vectors, weight * reversal_factor(step / 300))
            loss = 0.1 * (decoder(vectors) - inputs).square().mean()
            loss = loss + nn.functional.cross_entropy(head(vectors), label)
            loss = loss + nn.functional.cross_entropy(adversary(hidden), domain)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        vectors = encoder(inputs).detach()
        found.append((share_between(vectors, domain), share_between(vectors, label)))
    (seen, _), (unseen, learned) = found
    assert seen > 0.15 and unseen < 0.06 and learned > 0.5


def test_neither_micro_batches_nor_packing_change_value_or_gradient():
    torch.manual_seed(0)
    assert_layouts_change_nothing(DomainAdversary(DRAW, nn.Linear(32, 2)))
