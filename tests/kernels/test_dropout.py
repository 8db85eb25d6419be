"""Dropout with cheap draws: the ends of its range, and its gradient."""

import pytest
import torch

from acclimate.kernels.dropout import dropout


@pytest.mark.parametrize("probability", [1e-9, 0.5, 0.99999, 1 - 1e-12])
def test_every_probability_below_one_has_finite_values(probability):
    torch.manual_seed(0)
    found = dropout(torch.ones(4096, requires_grad=True), probability)
    assert found.isfinite().all()
    assert (found != 0).float().mean() == pytest.approx(1 - probability, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_passes_where_the_value_did(dtype):
    torch.manual_seed(0)
    values = torch.ones(30, 7, dtype=dtype).t().requires_grad_()  # not contiguous
    found = dropout(values, 0.25)
    assert set(found.unique().tolist()) == {0.0, torch.tensor(4 / 3, dtype=dtype).item()}
    (slope,) = torch.autograd.grad((2 * found).sum(), values)
    torch.testing.assert_close(slope, 2 * found.detach())


def test_a_second_derivative_is_refused():
    values = torch.randn(9, requires_grad=True)
    (slope,) = torch.autograd.grad(dropout(values, 0.1).square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        slope.sum().backward()
