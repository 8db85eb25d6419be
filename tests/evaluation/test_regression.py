"""Correlations and errors against scipy and scikit-learn, and resamples against ranking each again."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from acclimate.evaluation.regression import RegressionScoring, regression_metrics, weighted_ranks
from acclimate.evaluation.scoring import make_scoring
from acclimate.evaluation.significance import (
    bootstrap_intervals,
    bootstrap_weights,
    paired_bootstrap,
    permutation_test,
)
from tests.cases import each

SCORING = RegressionScoring()
REALS = st.integers(-(10**6), 10**6).map(lambda n: n / 7)
NUMBERS = st.lists(st.tuples(st.integers(-5, 5), REALS), min_size=3, max_size=30)


def or_zero(value):
    return 0.0 if np.isnan(value) else value


@settings(deadline=None, max_examples=60, database=None)
@given(NUMBERS)
def test_metrics_are_those_of_the_libraries(pairs):
    gold, predicted = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    found = regression_metrics(gold.tolist(), predicted.tolist())
    assert found["rmse"] == pytest.approx(root_mean_squared_error(gold, predicted))
    assert found["mae"] == pytest.approx(mean_absolute_error(gold, predicted))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["spearman"] == pytest.approx(or_zero(stats.spearmanr(gold, predicted).statistic), abs=1e-9)
        if np.ptp(predicted) > 1e-6 * np.abs(predicted).max():
            assert found["pearson"] == pytest.approx(or_zero(stats.pearsonr(gold, predicted).statistic), abs=1e-6)


@settings(deadline=None, max_examples=30, database=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(0, 99))
def test_weighted_ranks_are_those_of_repeated_values(values, seed):
    (weights,) = next(bootstrap_weights(len(values), 1, seed))
    repeated = np.repeat(values, weights.astype(int))
    found = np.repeat(weighted_ranks(np.array(values, dtype=float))(weights), weights.astype(int))
    assert found == pytest.approx(stats.rankdata(repeated))


def test_each_resample_is_ranked_again():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 6, 40).astype(float)
    predicted = gold + rng.normal(0, 2, 40)
    weights = next(bootstrap_weights(40, 50, 3))
    items, score = SCORING.resampler(gold, predicted, "spearman")
    slow = [stats.spearmanr(np.repeat(gold, row), np.repeat(predicted, row)).statistic for row in weights.astype(int)]
    assert items == 40 and score(weights) == pytest.approx(slow)
    assert score(np.ones((1, 40)))[0] == pytest.approx(SCORING.score(gold, predicted, "spearman"))
    intervals = bootstrap_intervals(SCORING, gold, predicted, ("spearman", "rmse"), n=50, seed=3)
    assert intervals["spearman"] == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))
    assert intervals["rmse"][0] < SCORING.score(gold, predicted, "rmse") < intervals["rmse"][1]


def test_paired_intervals_find_a_better_model_and_no_difference_to_itself():
    rng = np.random.default_rng(1)
    gold = rng.normal(size=200)
    good, bad = gold + rng.normal(0, 0.3, 200), gold + rng.normal(0, 3, 200)
    assert paired_bootstrap(gold, [good], [bad], "spearman", n=300, scoring=SCORING).low > 0.3
    assert paired_bootstrap(gold, [good], [good], "spearman", n=300, scoring=SCORING).verdict == "no difference shown"


@each(("metric", "scale"), [("rmse", 1.0), ("rmse", 1000.0), ("mae", 50.0)])
def test_paired_errors_have_their_unit_and_less_is_better(metric, scale):
    rng = np.random.default_rng(2)
    gold = scale * rng.normal(size=150)
    good, bad = gold + scale * rng.normal(0, 0.3, 150), gold + scale * rng.normal(0, 3, 150)
    found = paired_bootstrap(gold, [good], [bad], metric, n=500, scoring=SCORING)
    drawn = np.concatenate(list(bootstrap_weights(150, 500, 0))).astype(int)
    slow = [SCORING.score(*(np.repeat(x, row) for x in (gold, good)), metric)
            - SCORING.score(*(np.repeat(x, row) for x in (gold, bad)), metric) for row in drawn]  # fmt: skip
    assert found.difference == pytest.approx(SCORING.score(gold, good, metric) - SCORING.score(gold, bad, metric))
    assert (found.high - found.low) / 2 == pytest.approx(1.976 * np.std(slow), rel=0.02)
    assert found.low < found.high < -1.5 * scale and found.verdict == found.as_dict()["verdict"] == "helped"
    assert paired_bootstrap(gold, [bad], [good], metric, n=300, scoring=SCORING).verdict == "hurt"
    assert paired_bootstrap(gold, [bad], [bad], metric, n=300, scoring=SCORING).verdict == "no difference shown"
    assert permutation_test(gold, [good], [bad], metric, n=300, scoring=SCORING) == pytest.approx(1 / 301)


def test_constant_predictions():
    gold = [float(n) for n in range(30)]
    assert regression_metrics(gold, [3.0] * 30)["spearman"] == 0.0 == regression_metrics(gold, [3.0] * 30)["pearson"]
    nearly = [3.0 + 0.001 * n for n in range(30)]
    assert SCORING.find_collapse(gold, nearly).items == 30
    assert SCORING.find_collapse(gold, gold) is None and SCORING.find_collapse(gold[:5], [3.0] * 5) is None
    assert make_scoring("regression", {}) == SCORING
    with pytest.raises(ValueError, match="Unknown metric"):
        SCORING.score(gold, gold, "f1")
    with pytest.raises(ValueError, match="do not match"):
        regression_metrics([1.0], [])
