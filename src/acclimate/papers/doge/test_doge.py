"""DoGE against slow computations of the formulas of the paper and its code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acclimate.data.mix.base import read_mix
from acclimate.papers.doge.mix import DoGE
from tests.cases import each
from tests.data.rounds import EVERY, STEPS, train


@pytest.fixture(scope="module")
def gradients():
    """Gradients of two halves of the sample of each source: (sources, halves, weights)."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 2, 20)) + rng.normal(size=20)


def products(gradients):
    means = gradients.mean(1)
    found = means @ means.T
    np.fill_diagonal(found, (gradients[:, 0] * gradients[:, 1]).sum(1))
    return found, np.linalg.norm(means, axis=1)


def test_under_a_time_budget_the_steps_are_estimated(gradients):
    found, norms = products(gradients)
    timed, known = (
        train(DoGE(every=EVERY), 3, steps, gradients=lambda _: found, gradient_norms=lambda _: norms)
        for steps in (0, STEPS)
    )
    np.testing.assert_allclose(timed[0], 1 / 3)  # nobody knows the steps yet
    np.testing.assert_allclose(timed[1:], known[:2])


@each(("target", "targets"), [("", [0, 1, 2]), ("domain", [0]), ("wiki, web", [1, 2])])
def test_a_step_of_doge_is_the_formula_of_the_paper(gradients, target, targets):
    """``w <- w exp(rate / mu <g_i, sum of g_j>)``, divided by the sum."""
    rate, mu = 5e-4, 0.05
    mix = DoGE(
        target=target, own="squared", clip=0, normalize=False, lower=-1e9, upper=1e9, every=EVERY,
        strength=rate / mu * STEPS / EVERY,
    )  # fmt: skip
    found, norms = products(gradients)
    (weights,) = train(mix, 1, gradients=lambda _: found, gradient_norms=lambda _: norms)
    means = gradients.mean(1)
    raw = [math.exp(rate / mu * sum(float(means[i] @ means[j]) for j in targets)) / 3 for i in range(3)]
    np.testing.assert_allclose(weights, np.array(raw) / sum(raw), rtol=1e-10)


def test_a_step_of_doge_is_that_of_the_released_code(gradients):
    """``s_i = (sum of <g_i, g_j> - <g_i, g_i>) / mean norm`` of clipped gradients, between 0 and 5."""
    found, norms = products(gradients)
    mix = DoGE(own="omitted", clip=1.5, lower=0, every=EVERY, strength=4.0)
    (weights,) = train(mix, 1, gradients=lambda _: found, gradient_norms=lambda _: norms)
    clipped = [mean * min(1.0, 1.5 / float(np.linalg.norm(mean))) for mean in gradients.mean(1)]
    scale = sum(float(np.linalg.norm(one)) for one in clipped) / 3
    scores = [sum(float(a @ b) for j, b in enumerate(clipped) if j != i) / scale for i, a in enumerate(clipped)]
    raw = [math.exp(4.0 * EVERY / STEPS * min(5.0, max(0.0, score))) for score in scores]
    np.testing.assert_allclose(weights, np.array(raw) / sum(raw), rtol=1e-10)


def test_the_product_of_two_halves_does_not_count_noise():
    """A source of pure noise has a large gradient, but two halves of its sample have nothing in common."""
    rng = np.random.default_rng(1)
    scores = {"halves": [], "squared": []}
    for _ in range(200):
        gradients = np.stack([1 + 0.1 * rng.normal(size=(2, 50)), rng.normal(size=(2, 50)) * 3])
        for own, found in scores.items():
            found.append(DoGE(own=own, clip=0).scores(*products(gradients), [0, 1]))
    halves, squared = (np.mean(scores[own], axis=0) for own in ("halves", "squared"))
    assert abs(halves[1]) < 0.15 * halves[0]
    assert squared[1] > squared[0]


def test_a_measurement_that_is_no_number_changes_nothing():
    found = train(
        read_mix("doge every=10"), 2, gradients=lambda _: np.full((3, 3), np.nan), gradient_norms=lambda _: [1] * 3
    )
    np.testing.assert_allclose(found, 1 / 3)
