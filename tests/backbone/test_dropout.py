"""Dropout with cheap draws: the ends of its range."""

import pytest
import torch

from acclimate.backbone.dropout import dropout


@pytest.mark.parametrize("probability", [1e-9, 0.5, 0.99999, 1 - 1e-12])
def test_every_probability_below_one_has_finite_values(probability):
    torch.manual_seed(0)
    found = dropout(torch.ones(4096, requires_grad=True), probability)
    assert found.isfinite().all()
    assert (found != 0).float().mean() == pytest.approx(1 - probability, abs=0.05)
