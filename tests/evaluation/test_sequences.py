"""Measures of a sequence of domains, against the sums of their definitions and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from acclimate.labs.sequence.rows import MEASURES
from acclimate.labs.sequence.transfer import sequence_measures, spread_over_runs
from tests.cases import each

SCORES = np.array([[0.2, 0.1, 0.3], [0.8, 0.2, 0.3], [0.9, 0.7, 0.1], [0.5, 0.6, 0.9]])


def test_a_small_matrix_by_hand():
    found = sequence_measures(SCORES, lower_is_better=False, separate=[0.9, 0.7, 0.7])
    expected = {
        "average": (0.5 + 0.6 + 0.9) / 3,
        "gain": (0.3 + 0.5 + 0.6) / 3,
        "forgetting": (0.4 + 0.1) / 2,  # the first domain was best after the second
        "backward": (-0.3 - 0.1) / 2,
        "forward": (0.1 - 0.2) / 2,
        "learning": (-0.1 + 0.0 + 0.2) / 3,
    }
    assert found == pytest.approx(expected) and list(found) == list(MEASURES)


def slowly(matrix, separate):
    """The definitions, with one-based stages and domains as in the papers; higher is better."""
    count = len(matrix) - 1

    def at(stage, domain):
        return matrix[stage][domain - 1]

    def mean(values):
        return sum(values) / len(values) if values else None

    early = range(1, count)
    return {
        "average": mean([at(count, j) for j in range(1, count + 1)]),
        "gain": mean([at(count, j) - at(0, j) for j in range(1, count + 1)]),
        "forgetting": mean([max(at(i, j) for i in range(j, count)) - at(count, j) for j in early]),
        "backward": mean([at(count, j) - at(j, j) for j in early]),
        "forward": mean([at(j - 1, j) - at(0, j) for j in range(2, count + 1)]),
        "learning": mean([at(j, j) - separate[j - 1] for j in range(1, count + 1)]),
    }


@given(count=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_measures_are_their_definitions_for_scores_and_losses(count, seed):
    rng = np.random.default_rng(seed)
    matrix, separate = rng.normal(size=(count + 1, count)), rng.normal(size=count)
    expected = slowly(matrix.tolist(), separate.tolist())
    found = sequence_measures(matrix, lower_is_better=False, separate=separate)
    assert found == pytest.approx(expected)
    losses = sequence_measures(-matrix, lower_is_better=True, separate=-separate)
    assert losses.pop("average") == pytest.approx(-expected.pop("average"))
    assert losses == pytest.approx(expected)
    if count > 1:
        assert found["forgetting"] >= -found["backward"] - 1e-12


@each(
    ("missing", "known"),
    [
        ([(3, 0)], {"forward", "learning"}),
        ([(0, 2)], {"average", "forgetting", "backward", "learning"}),
        ([(2, 0), (1, 1), (2, 2), (1, 2)], {"average", "gain", "forgetting", "backward", "learning"}),
        ([(1, 0)], {"average", "gain", "forward"}),
    ],
)
def test_a_measure_that_misses_a_value_is_unknown(missing, known):
    matrix = SCORES.copy()
    for place in missing:
        matrix[place] = np.nan
    found = sequence_measures(matrix, lower_is_better=False, separate=[0.9, 0.7, 0.7])
    assert {name for name, value in found.items() if value is not None} == known


def test_what_is_not_a_matrix_of_a_sequence_is_refused():
    for shape in ((3, 3), (1, 0), (4,)):
        with pytest.raises(ValueError, match="one row more than columns"):
            sequence_measures(np.zeros(shape), lower_is_better=True)


def test_intervals_are_those_of_scipy_over_seeds_and_over_orders():
    values = np.random.default_rng(0).normal(size=(2, 4))
    found = spread_over_runs(values.tolist())
    for ours, means in ((found.seeds, values.mean(0)), (found.orders, values.mean(1))):
        assert ours == pytest.approx(stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means)))
    assert found.mean == pytest.approx(values.mean())
    single = spread_over_runs([[1.5]])
    assert (single.mean, single.seeds, single.orders) == (1.5, None, None)
    assert spread_over_runs([]) is None and spread_over_runs([[None, None]]) is None
    partial = spread_over_runs([[1.0, 2.0, None], [3.0, None, None], [5.0, 6.0, None]])
    assert partial.mean == 3.5 and partial.orders is not None
