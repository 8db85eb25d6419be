"""Balanced factors: the product stays, the norms are equal, and the optimizer starts anew."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.parts.updates import Refactorization
from acclimate.parts.updates.refactorization import balance_factors


@given(
    rank=st.integers(1, 6),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    dead=st.integers(0, 6),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_the_product_stays_and_its_components_are_singular_vectors_of_equal_norms(rank, rows, columns, dead, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(rank, columns, generator=generator), 3 * torch.randn(rows, rank, generator=generator)
    b[:, :dead] = 0
    made_a, made_b = balance_factors(a, b)
    torch.testing.assert_close(made_b @ made_a, b @ a, atol=2e-5, rtol=1e-5)
    if not (b @ a).any():
        assert torch.equal(made_a, a) and torch.equal(made_b, b)
        return
    values = torch.linalg.svdvals((b @ a).double())
    full = values[values > 1e-5 * values[0]]
    for made in (made_b.T, made_a):
        overlaps = (made @ made.T)[: len(full), : len(full)]
        torch.testing.assert_close(overlaps, full.float().diag(), atol=1e-4, rtol=1e-4)
    # An empty component can still learn: A has a row for it, up to the rank that the product can have.
    most = min(rank, rows, columns)
    assert (made_a[:most].norm(dim=1) > 0).all() and not made_b[:, len(full) :].abs().gt(1e-3).any()


def test_every_third_step_the_factors_are_balanced_and_adam_starts_anew():
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(4, 2))
    frozen = [nn.Parameter(torch.randn(*shape), requires_grad=False) for shape in ((2, 5), (4, 2))]
    before = [factor.clone() for factor in frozen]
    rule, optimizer = Refactorization([(a, b), tuple(frozen)], every=3), torch.optim.AdamW([a, b], lr=0.01, eps=1e-12)
    for step in range(7):
        a.grad, b.grad = torch.randn_like(a), torch.randn_like(b)
        start = [factor.detach().clone() for factor in (a, b)]
        gradients = a.grad.clone(), b.grad.clone()
        rule.steps_taken = step
        products = []
        rule.step(optimizer, lambda: (optimizer.step(), products.append((b @ a).detach().clone())))  # noqa: B023
        torch.testing.assert_close((b @ a).detach(), products[0], atol=1e-5, rtol=1e-5)
        balanced = torch.allclose(a.norm(dim=1), b.norm(dim=0), rtol=1e-4)
        assert balanced == (step in (2, 5)) == (a not in optimizer.state)
        if step in (0, 3, 6):  # right after a new start, Adam moves every weight by the learning rate
            for factor, old, gradient in zip((a, b), start, gradients, strict=True):
                torch.testing.assert_close(
                    factor.detach() - old * (1 - 1e-4), -0.01 * gradient.sign(), atol=1e-5, rtol=0
                )
    assert all(torch.equal(one, other) for one, other in zip(frozen, before, strict=True))
