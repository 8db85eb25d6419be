"""The loss at the end of a training says whether it went on long enough, whatever its scale and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.evaluation.learning import BINS, bin_losses, first_and_last, still_falls

STEPS = np.linspace(0, 1, BINS)
PROGRESS = STEPS - STEPS**2 / 2
"""What a learning rate that falls to zero has moved until each step."""


@pytest.mark.parametrize(
    ("speed", "unfinished"), [(0.05, True), (0.3, True), (1.0, True), (8.0, False), (20.0, False)]
)
def test_slow_trainings_are_unfinished_and_fast_ones_are_not(speed, unfinished):
    """At speeds between, the loss at the end is below half of the one at the start."""
    assert still_falls((1.1 * np.exp(-speed * PROGRESS)).tolist()) is unfinished


@given(st.floats(1e-3, 1e3), st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 10.0]))
def test_the_answer_depends_neither_on_the_unit_nor_on_small_noise(scale, seed, speed):
    noise = np.random.default_rng(seed).normal(0, 0.001, BINS)
    losses = np.exp(-speed * PROGRESS) + noise
    assert still_falls((scale * losses).tolist()) is still_falls(losses.tolist()) is (speed < 1)


@given(st.integers(0, 2**31))
def test_noise_alone_is_seldom_a_fall(seed):
    rng = np.random.default_rng(seed)
    found = [still_falls((1 + rng.normal(0, 0.1, BINS)).tolist()) for _ in range(50)]
    assert sum(found) <= 6  # each has a probability of about 1 %


@given(st.lists(st.floats(0.1, 1.0), min_size=8, max_size=BINS))
def test_what_is_said_to_fall_ends_below_its_start(losses):
    first, last = first_and_last(losses)
    assert first > last or not still_falls(losses)


def test_a_bump_before_the_end_is_no_fall():
    assert not still_falls([0.689] * 10 + [0.71, 0.711, 0.712, 0.711, 0.71] + [0.693, 0.6931, 0.693, 0.6932, 0.693])


def test_a_loss_that_stays_where_it_was_has_not_fallen_steeply():
    noise = np.random.default_rng(3).normal(0, 0.003, BINS)
    assert not still_falls([*(0.669 + noise[:10]), *(0.674 + noise[10:15] / 9), *(0.668 + noise[15:] / 9)])


def test_the_losses_are_means_of_equal_parts():
    log = [{"loss": float(step), "step": step} for step in range(100)] + [{"heldout": 1.0}]
    assert bin_losses(log) == [2.0 + 5 * part for part in range(BINS)]
    assert bin_losses(log[:3]) == [0.0, 1.0, 2.0] and bin_losses([]) == []
    assert not still_falls([]) and not still_falls([3.0, 2.0, 1.0]) and not still_falls([float("nan")] * BINS)
