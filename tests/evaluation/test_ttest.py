"""The paired t-test against scipy, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from acclimate.evaluation.statistics import paired_t_test
from tests.cases import each


@each("seeds", [2, 3, 10])
def test_it_is_that_of_scipy(seeds):
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.70, 0.02, seeds), rng.normal(0.68, 0.02, seeds)
    assert paired_t_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert paired_t_test(a, b) == pytest.approx(paired_t_test(b, a))


def test_by_hand():
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3); t = 2 sqrt(3) with 2 degrees of freedom.
    t = 2 * 3**0.5
    assert paired_t_test([2, 4, 6], [1, 2, 3]) == pytest.approx(1 - t / (t**2 + 2) ** 0.5)


def test_edges():
    assert paired_t_test([0.5], [0.4]) is None
    assert paired_t_test([0.5, 0.6], [0.5, 0.6]) == 1.0
    assert paired_t_test([0.75, 0.5], [0.5, 0.25]) == 0.0
    with pytest.raises(ValueError, match="as many seeds"):
        paired_t_test([0.5, 0.6], [0.5])
