"""Differences between the mean scores of finished runs: oracles, agreement of intervals and p, and null rates."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scripts.simulate_judge import LAYOUTS, OUT, Cell, measure, rate, render

from acclimate.evaluation.runs import difference_of_runs, residuals
from tests.cases import each

FEW = settings(max_examples=60, deadline=None)
GROUPED = st.lists(st.integers(1, 12), min_size=2, max_size=15)


def pair(up: int, down: int, same: int) -> tuple[np.ndarray, np.ndarray]:
    """Return zeros and ones of two models that differ on ``up + down`` items."""
    first = np.repeat([1, 0, 1], [up, down, same]).astype(float)
    return first, np.repeat([0, 1, 1], [up, down, same]).astype(float)


def difference(up, down, same):
    return difference_of_runs(*pair(up, down, same)).interval


@each("table", [(0, 0, 30), (1, 0, 30), (6, 0, 4), (0, 6, 400), (9, 2, 40), (15, 5, 80), (310, 250, 2500)])
def test_the_p_value_of_zeros_and_ones_is_mcnemars_exact(table):
    up, down, same = table
    exact = stats.binomtest(up, up + down).pvalue if up + down else 1.0
    assert difference(up, down, same).p == pytest.approx(exact, abs=1e-12)


def test_the_interval_of_zeros_and_ones_excludes_zero_exactly_if_mcnemar_does():
    for same, up, down in itertools.product((0, 3, 25, 900), range(22), range(8)):
        if up + down + same > 1:
            found = difference(up, down, same)
            assert (found.p < 0.05) == (found.sign != 0), (up, down, same, found)
            assert -1 <= found.low <= found.difference <= found.high <= 1


@each("table", [(1, 0, 43), (0, 0, 30), (3, 0, 20), (9, 4, 7)])
def test_the_wider_end_has_a_score_statistic_of_its_quantile(table):
    """With the likelihood of the other parameter maximised numerically."""
    up, down, same = table
    items, end = sum(table), difference(up, down, same).high

    def loss(less):
        shares = np.array([less + end, less, 1 - 2 * less - end])
        return -float(np.sum(np.array(table) * np.log(np.maximum(shares, 1e-300))))

    least = optimize.minimize_scalar(loss, bounds=(max(0.0, -end), (1 - end) / 2), options={"xatol": 1e-12}).x
    statistic = ((up - down) / items - end) / np.sqrt((2 * least + end * (1 - end)) / items)
    assert statistic == pytest.approx(-1.96, abs=0.002)


@FEW
@given(GROUPED, st.integers(0, 10**6))
def test_residuals_give_the_clustered_standard_error_of_a_mean(sizes, seed):
    """The formula of inspect_ai's ``stderr(cluster=...)`` (Miller, 2024, with the correction for few clusters)."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(seed).normal(groups, 1.0)
    deviations = values - values.mean()
    crossed = sum(np.outer(own, own).sum() for own in (deviations[groups == group] for group in set(groups)))
    theirs = np.sqrt(crossed * len(sizes) / (len(sizes) - 1)) / len(values)
    own = residuals(values[None], np.full(len(values), 1 / len(values)), groups)
    assert np.sqrt((own**2).sum() * len(sizes) / (len(sizes) - 1)) == pytest.approx(theirs, rel=1e-9)
    if len(set(sizes)) == 1:
        found = difference_of_runs(values, np.zeros(len(values)), groups=groups)
        assert found.interval.error == pytest.approx(theirs, rel=1e-9)


@FEW
@given(GROUPED, st.integers(0, 10**6))
def test_the_variance_over_groups_is_the_jackknife_that_leaves_groups_out(sizes, seed):
    rng, groups = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    first, second, weights = rng.normal(size=(2, len(groups))), rng.normal(size=len(groups)), rng.random(len(groups))
    found = difference_of_runs(first[:1], second, weights, groups)
    each_out = [
        np.average(first[0][groups != group] - second[groups != group], weights=weights[groups != group])
        for group in range(len(sizes))
    ]
    whole = np.average(first[0] - second, weights=weights)
    expected = (len(sizes) - 1) / len(sizes) * sum((part - whole) ** 2 for part in each_out)
    assert found.interval.error**2 == pytest.approx(expected, rel=1e-6)
    assert found.interval.difference == pytest.approx(whole)


def test_single_items_give_the_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=40), rng.normal(size=40)
    found, theirs = difference_of_runs(first, second).interval, stats.ttest_rel(first, second)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))


def test_independent_runs_without_differences_between_items_give_welchs_test():
    """Then the variance is over runs alone."""
    first, second = np.array([3.0, 5.0, 4.5]), np.array([1.0, 2.5, 2.0, 0.5])
    found = difference_of_runs(np.tile(first[:, None], 20), np.tile(second[:, None], 20)).interval
    assert found.p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    paired = difference_of_runs(np.tile(first[:, None], 20), np.tile(second[:3, None], 20), paired=True).interval
    assert paired.p == pytest.approx(stats.ttest_rel(first, second[:3]).pvalue)


def test_the_components_of_two_runs_against_one_are_those_computed_by_hand():
    first, second = np.array([[4.0, 2.0, 6.0], [2.0, 2.0, 2.0]]), np.array([1.0, 1.0, 1.0])
    found = difference_of_runs(first, second)
    # Means of the runs: 4 and 2, so the variance of their mean is 2 / 2 = 1. The item means 3, 2, 4 have variance 1,
    # so their mean has 1 / 3. The deviations of each run from them, centred, are +-(0, -1, 1), with variance 1, of the
    # mean 1 / 3; over the two runs this is 2 / 3, divided by (2 - 1) * 2 it is the interaction, 1 / 3.
    (side,) = found.sides
    assert (side.variance, side.interaction) == pytest.approx((1, 1 / 3))
    assert (found.items, found.interval.difference) == pytest.approx((0, 2), abs=1e-12)


def test_more_runs_that_agree_narrow_only_what_varies_between_runs():
    rng = np.random.default_rng(1)
    items = rng.normal(size=200)
    one = difference_of_runs(items, np.zeros(200)).interval
    five = difference_of_runs(np.tile(items, (5, 1)), np.zeros((5, 200)), paired=True).interval
    assert five.error == pytest.approx(one.error)


def test_scores_that_differ_on_few_items_have_few_degrees_of_freedom():
    """On 3,000 items the usual t interval calls four equal signs of four significant."""
    values = np.zeros(3000)
    values[:4] = 0.25
    assert difference_of_runs(values, np.zeros(3000)).interval.sign == 0
    values[:12] = 0.25
    assert difference_of_runs(values, np.zeros(3000)).interval.sign == 1


def test_a_group_with_most_items_decides_alone():
    groups = np.repeat(np.arange(12), [60, *[2] * 11])
    rng = np.random.default_rng(2)
    assert not difference_of_runs(rng.random(len(groups)), rng.random(len(groups)), groups=groups).has_enough_units
    assert difference_of_runs(rng.random(12), rng.random(12)).has_enough_units
    assert not difference_of_runs(rng.random(9), rng.random(9)).has_enough_units


@FEW
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.booleans(), st.integers(0, 10**6))
def test_an_interval_excludes_zero_exactly_if_p_is_below_5_percent(a, b, items, grouped, seed):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.arange(items) % max(items // 2, 1)) if grouped else None
    scores = [np.round(rng.normal(shift, 1, (runs, items))) for shift, runs in ((1.0, a), (0.0, b))]
    found = difference_of_runs(*scores, groups=groups, paired=a == b).interval
    assert (found.p < 0.05) == (found.sign != 0)
    assert found.low <= found.difference <= found.high
    turned = difference_of_runs(*scores[::-1], groups=groups, paired=a == b).interval
    assert (turned.low, turned.high, turned.p) == pytest.approx((-found.high, -found.low, found.p), nan_ok=True)


@FEW
@given(st.floats(-1, 1), st.integers(2, 90), st.integers(1, 3), st.sampled_from([1.0, 100.0]), st.integers(0, 9))
def test_a_difference_that_all_units_have_is_bounded_by_the_share_that_others_can_have(d, units, size, limit, seed):
    base = limit * np.random.default_rng(seed).random(units * size)
    groups = np.repeat(np.arange(units), size) if size > 1 else None
    found = difference_of_runs(base + limit * d, base, groups=groups, limit=limit)
    low, high = found.interval.low / limit, found.interval.high / limit
    for end, other in ((low, -1), (high, 1)):
        if abs(d - other) > 1e-6:  # a share of other units that differ by the most gives this mean
            share = (end - d) / (other - d)
            assert (1 - share) ** units == pytest.approx(0.025)
    assert low - 1e-9 <= d <= high + 1e-9 and (found.interval.p < 0.05) == (found.interval.sign != 0)
    assert difference_of_runs(base + limit, base, groups=groups, limit=limit).interval.p == pytest.approx(
        2.0 ** (1 - units)
    )
    unbounded = difference_of_runs(base + limit * d, base, groups=groups)
    assert not unbounded.varies and unbounded.units_needed(1.0) is None
    assert (unbounded.interval.low, unbounded.interval.high, unbounded.interval.p) == (-np.inf, np.inf, 1.0)


def test_what_is_needed_is_the_least_that_suffices():
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(4, 1)) * 0.02
    found = difference_of_runs(rng.normal(0.1, 1, (4, 300)) + noise, rng.normal(0, 1, (4, 300)))
    units, runs = found.units_needed(0.2), found.runs_needed(0.2)
    assert units and found.can_show(0.2, units=units / 300) and not found.can_show(0.2, units=(units - 1) / 300)
    assert runs and found.can_show(0.2, runs=runs / 4) and not found.can_show(0.2, runs=(runs - 1) / 4)
    assert found.units_needed(1e-7) is None, "the variance between runs remains"
    assert difference_of_runs(rng.normal(size=30), rng.normal(size=30)).runs_needed(0.1) is None


@pytest.mark.slow
def test_the_items_needed_show_the_difference_four_times_in_five():
    rng, effect = np.random.default_rng(4), 0.25
    pilot = difference_of_runs(rng.normal(0, 1, 2000), rng.normal(0, 1, 2000))
    needed = pilot.units_needed(effect)
    seen = [
        difference_of_runs(rng.normal(effect, 1, needed), rng.normal(0, 1, needed)).interval.sign > 0
        for _ in range(2000)
    ]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.04)


@each("layout", LAYOUTS[:2] + LAYOUTS[3:4])
def test_without_a_true_difference_few_intervals_exclude_zero(layout):
    """A small version of the simulation behind docs/dev/judge.md."""
    cells = itertools.product(("binary", "skewed"), ("1 and 1", "2 pairs"))
    assert rate([measure(Cell(scores, layout, runs), 150) for scores, runs in cells]) < 7.5


def test_the_measured_null_rates_hold_and_are_on_the_page():
    rows = json.loads(OUT.read_text(encoding="utf-8"))
    assert rate(rows) <= 5.5 and max(rate([row]) for row in rows) <= 7
    assert OUT.with_suffix(".md").read_text(encoding="utf-8") == render(rows)
