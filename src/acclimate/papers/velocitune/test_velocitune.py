"""Velocitune against slow computations of the formula of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from acclimate.data.mix.base import read_mix
from acclimate.papers.velocitune.mix import predict_loss
from tests.data.rounds import EVERY, train


def test_under_a_time_budget_the_steps_are_estimated():
    velocitune = read_mix(f"velocitune fit=0.3 every={EVERY}")
    assert velocitune.describe() == f"velocitune every={EVERY} fit=0.3"
    losses = {"heldout_loss": lambda number: [1 + (1 + number) ** -0.5, 2 - 0.01 * number, 1.5]}
    np.testing.assert_allclose(train(velocitune, 12, 0, **losses), train(velocitune, 12, **losses))


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 3), st.floats(0.2, 3), st.floats(0.1, 1.0))
def test_the_scaling_law_predicts_the_loss_at_the_end(floor, scale, power):
    tokens = np.linspace(1e4, 1e5, 8)
    found = predict_loss(tokens, floor + scale * (tokens / 1e4) ** -power, 5e5)
    assert found == pytest.approx(floor + scale * 50**-power, abs=5e-3 * scale)


def test_the_fit_is_that_of_scipy():
    rng = np.random.default_rng(0)
    tokens = np.linspace(1, 20, 30)
    losses = 1.5 + tokens**-0.5 + 0.01 * rng.normal(size=30)
    found, _ = curve_fit(lambda x, e, b, p: e + b * x**-p, tokens, losses, p0=(1, 1, 0.3), bounds=(0, 5))
    assert predict_loss(tokens, losses, 80) == pytest.approx(found[0] + found[1] * 80 ** -found[2], abs=2e-3)


def test_a_step_of_velocitune_is_the_formula_of_the_paper():
    mix = read_mix({"velocitune": {"targets": {"domain": 1.0, "wiki": 2.0, "web": 1.0}, "every": EVERY}})
    losses = np.array([[3.0, 3.0, 2.0], [2.0, 2.9, 0.9], [1.5, 1.5, 2.5]])
    found = train(mix, 3, heldout_loss=lambda number: losses[number])
    expected = [1 / 3] * 3
    for round_, now in enumerate(losses):
        way = [(1.0, 2.0, 1.0)[i] for i in range(3)]
        left = [min(1, max(0, (now[i] - way[i]) / (losses[0][i] - way[i]))) for i in range(3)]
        raw = [weight * math.exp(one) for weight, one in zip(expected, left, strict=True)]
        expected = [one / sum(raw) for one in raw]
        np.testing.assert_allclose(found[round_], expected, rtol=1e-10)


def test_velocitune_predicts_targets_and_gives_the_slow_source_more():
    """Both sources have the same losses in the fit; then the second stays behind its law, and web is forgotten."""
    mix = read_mix(f"velocitune fit=0.3 every={EVERY}")

    def losses(number):
        law = 1 + (1 + number) ** -0.5
        behind = law + 0.05 * max(0, number - 6)
        return [law, behind, 2 + 0.01 * number]

    found = train(mix, 16, heldout_loss=losses)
    np.testing.assert_allclose(found[:6], 1 / 3)  # the initial weights until 30 % of the training
    assert found[-1, 1] > 1.2 * found[-1, 0]
    assert found[-1, 2] > found[-1, 0]  # it is above its target, and its loss does not fall
