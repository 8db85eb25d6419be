"""The rank correlation of advice with measured gains, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.advice import rank_correlation
from scipy import stats


def test_rank_correlation_against_scipy():
    rng = np.random.default_rng(0)
    expected, measured = rng.normal(size=6).tolist(), [0.1, 0.3, 0.3, -0.2, 0.5, 0.0]
    rho, p = rank_correlation(expected, measured)
    assert rho == pytest.approx(stats.spearmanr(expected, measured).statistic)
    exact = stats.permutation_test(
        (expected,), lambda order: stats.spearmanr(order, measured).statistic, permutation_type="pairings"
    )
    assert p == pytest.approx(exact.pvalue, abs=0.02)
    assert rank_correlation([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]) == (pytest.approx(1), pytest.approx(2 / 720))
