"""The bandit against a slow computation of its rewards."""

from __future__ import annotations

import math

import numpy as np

from acclimate.data.mix.base import read_mix
from tests.data.rounds import EVERY, train


def test_the_bandit_follows_the_loss_that_falls():
    fast = read_mix(f"bandit every={EVERY}")
    losses = [lambda n: 3 * 0.9**n, lambda n: 3 * 0.99**n, lambda n: 3 + 0.01 * n]

    def loss(number):
        return [math.nan] * 3 if number == 0 else [one(number) for one in losses]

    found = train(fast, 12, train_loss=loss)
    np.testing.assert_allclose(found[:2], 1 / 3)
    assert found[-1, 0] > 0.5 > found[-1, 1] > found[-1, 2] > 0.2 / 3 - 1e-9


def test_fair_weights_are_in_proportion_to_the_average_progress():
    losses = [[np.nan] * 3, [4.0, 2.0, 1.0], [3.0, 2.0, 1.5], [2.0, 1.0, 1.2]]
    mix = read_mix(f"bandit rule=fair explore=0.1 memory=0.5 every={EVERY}")
    found = train(mix, 4, train_loss=lambda number: losses[number])
    sums = np.array([1 / 4 / 2 + 1 / 3, 1 / 2, 0.0])  # of the third source -1/2, faded, and 1/5
    np.testing.assert_allclose(found[-1], 0.9 * sums / sums.sum() + 0.1 / 3)
    np.testing.assert_allclose(found[0], 1 / 3)


def test_a_proposal_of_the_bandit_is_a_softmax_of_fading_rewards():
    losses = np.array([[np.nan] * 3, [4.0, 2.0, np.nan], [3.0, np.nan, 1.0], [2.0, 1.0, 0.9]])
    mix = read_mix(f"bandit eta=0.5 explore=0.1 memory=0.8 every={EVERY}")
    rewards = [[0, 0, 0], [0, 0, 0], [1 / 4, 0, 0], [1 / 3, 1 / 2, 0.1]]
    low, high = np.percentile(np.array(rewards), [20, 80])
    sums = [
        0.5
        * sum(0.8 ** (3 - n) * min(1, max(-1, 2 * (one[i] - low) / (high - low) - 1)) for n, one in enumerate(rewards))
        for i in range(3)
    ]
    raw = [math.exp(one) for one in sums]
    found = train(mix, 4, train_loss=lambda number: losses[number])[-1]
    np.testing.assert_allclose(found, [0.9 * one / sum(raw) + 0.1 / 3 for one in raw], rtol=1e-10)
