"""Intervals cover what they should, tests are exact where they claim to be, and all of it agrees with slow code."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from acclimate.evaluation.statistics import Interval, holm, paired_bootstrap, paired_difference, permutation_test
from tests.cases import each


def null_study(rng, seeds=3, items=139, classes=6, luck=0.1):
    """Two methods of which neither is better: the same law, each with its own luck of items and of seeds."""
    prior = 0.5 ** np.arange(classes) + 0.05
    gold = rng.choice(classes, size=items, p=prior / prior.sum())
    ease = rng.normal(1.0, 1.5, items)
    wrong = (gold + rng.integers(1, classes, items)) % classes
    methods = []
    for _ in range(2):
        taste = rng.normal(0, 0.5, items)
        runs = []
        for _ in range(seeds):
            shift = rng.normal(0, luck) + rng.normal(0, 1.5 * luck, classes)[gold]
            runs.append(np.where(ease + taste + shift + rng.normal(0, 0.7, items) > 0, gold, wrong))
        methods.append(runs)
    return gold, methods[0], methods[1]


def macro(gold, predicted):
    return f1_score(gold, predicted, average="macro", zero_division=0)


def coverage(studies, **options):
    rng = np.random.default_rng(1)
    inside = 0
    for number in range(studies):
        interval = paired_bootstrap(*null_study(rng, **options), n=300, seed=number)
        inside += interval.low <= 0 <= interval.high
    return inside / studies


@each("luck", [0.0, 0.3])
def test_interval_covers_zero_when_there_is_no_difference(luck):
    assert coverage(200, luck=luck) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("luck", [0.1, 0.3])
def test_coverage_is_95_percent_with_five_seeds(luck):
    assert 0.93 <= coverage(1000, seeds=5, luck=luck) <= 0.97


def test_agrees_with_scikit_learn_and_a_plain_bootstrap():
    gold, a, b = null_study(np.random.default_rng(3), seeds=2, items=60, classes=3)
    fast = paired_bootstrap(gold, a, b, n=200, seed=5)
    slow = paired_bootstrap(gold, a, b, macro, n=200, seed=5)
    plain = np.mean([macro(gold, x) - macro(gold, y) for x, y in zip(a, b, strict=True)])
    assert fast.difference == pytest.approx(plain)
    assert (fast.low, fast.high, fast.p) == pytest.approx((slow.low, slow.high, slow.p))
    assert permutation_test(gold, a, b, n=100) == permutation_test(gold, a, b, macro, n=100)


def test_one_seed_and_accuracy_is_the_paired_t_test():
    gold, a, b = null_study(np.random.default_rng(4), seeds=1, items=400)
    interval = paired_bootstrap(gold, a, b, "accuracy", n=8000)
    expected = stats.ttest_rel((gold == a[0]).astype(float), (gold == b[0]).astype(float))
    span = expected.confidence_interval()
    assert (interval.low, interval.high) == pytest.approx((span.low, span.high), abs=2e-3)
    assert interval.p == pytest.approx(expected.pvalue, abs=0.03)


def test_swapping_the_methods_turns_the_interval_round():
    gold, a, b = null_study(np.random.default_rng(5))
    one, other = paired_bootstrap(gold, a, b), paired_bootstrap(gold, b, a)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert one.p == pytest.approx(other.p)


def test_luck_of_seeds_widens_the_interval():
    gold = np.zeros(500, int)
    gold[250:] = 1
    base = [gold.copy() for _ in range(3)]
    steady, shaky = [], []
    for wrong_steady, wrong_shaky in ((100, 10), (100, 100), (100, 190)):
        for runs, wrong in ((steady, wrong_steady), (shaky, wrong_shaky)):
            predicted = gold.copy()
            predicted[:wrong] = 1 - predicted[:wrong]
            runs.append(predicted)
    calm, wild = (paired_bootstrap(gold, base, runs, "accuracy") for runs in (steady, shaky))
    assert calm.difference == pytest.approx(wild.difference)
    assert calm.verdict == "win" and wild.verdict == "tie"
    assert wild.high - wild.low > 3 * (calm.high - calm.low)


def test_seeds_of_one_group_count_once():
    gold, a, b = null_study(np.random.default_rng(6), seeds=2, luck=0.4)
    twice_a, twice_b = [*a, *a], [*b, *b]
    once = paired_bootstrap(gold, a, b)
    grouped = paired_bootstrap(gold, twice_a, twice_b, groups=["x", "y", "x", "y"])
    naive = paired_bootstrap(gold, twice_a, twice_b)
    assert (grouped.low, grouped.high) == pytest.approx((once.low, once.high))
    assert naive.high - naive.low < grouped.high - grouped.low


def of_groups(means, groups):
    """The interval of studies without luck of items: a method answers with a number that its group has."""
    runs = [[mean, mean] for mean in means]
    return paired_bootstrap([0, 0], runs, [[0, 0]] * len(means), lambda gold, found: found.mean(), n=2, groups=groups)


def test_groups_of_unequal_size_weigh_alike_in_estimate_and_variance():
    found = of_groups([10, 10, 0, 0, 0], "xxyyz")
    assert found.difference == pytest.approx(4)  # the mean over seeds, as tables of scores show it
    variance = np.var([10, 0, 0], ddof=1) * (0.4**2 + 0.4**2 + 0.2**2)
    assert found.high - found.difference == pytest.approx(stats.t.ppf(0.975, 2) * variance**0.5)


@each("sizes", [(2, 2, 1), (4, 1, 1), (3, 2)])
def test_the_variance_of_unequal_groups_is_that_of_the_estimate(sizes):
    rng = np.random.default_rng(9)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    found = [of_groups(np.rint(rng.normal(0, 1e4, len(sizes)))[groups], groups.tolist()) for _ in range(3000)]
    reach = np.array([interval.high - interval.difference for interval in found])
    claimed = (reach / stats.t.ppf(0.975, len(sizes) - 1)) ** 2
    true = 1e8 * sum(size**2 for size in sizes) / sum(sizes) ** 2
    assert claimed.mean() / true == pytest.approx(1, abs=4 * (2 / (len(sizes) - 1) / 3000) ** 0.5)
    inside = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert inside == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 3000) ** 0.5)


def test_parts_of_unequal_groups_against_slow_code():
    gold, a, b = null_study(np.random.default_rng(10), seeds=4, items=80, classes=3, luck=0.2)
    groups, n = ["x", "y", "x", "x"], 60
    weights = {"x": 3 / 4, "y": 1 / 4}
    rng, draws, pairs = np.random.default_rng(0), [], list(zip(a, b, strict=True))
    for row in rng.integers(len(gold), size=(n, len(gold))):
        draws.append([macro(gold[row], one[row]) - macro(gold[row], other[row]) for one, other in pairs])
    whole = [macro(gold, one) - macro(gold, other) for one, other in pairs]

    def of(values):
        return {
            name: np.mean([value for value, group in zip(values, groups, strict=True) if group == name])
            for name in weights
        }

    wider = 80 / 79
    everything = np.var([sum(weights[name] * of(row)[name] for name in weights) for row in draws], ddof=1) * wider
    alone = {name: np.var([of(row)[name] for row in draws], ddof=1) * wider for name in weights}
    squares = sum(weight**2 for weight in weights.values())
    # everything = a + sum(w**2 * c) and alone = a + c, in two groups: solved for the part that is counted twice
    twice = (sum(weights[name] ** 2 * alone[name] for name in weights) - squares * everything) / (1 - squares)
    seeds = np.var(list(of(whole).values()), ddof=1) * squares
    variance = max(everything - max(twice, 0), everything - seeds, 0) + seeds
    found = paired_bootstrap(gold, a, b, n=n, groups=groups)
    freedom = variance**2 / ((variance - seeds) ** 2 / 79 + seeds**2)
    assert found.difference == pytest.approx(np.mean(whole))
    assert twice > 0
    assert found.high - found.difference == pytest.approx(stats.t.ppf(0.975, freedom) * variance**0.5)


def test_equal_predictions_make_no_difference():
    gold, a, _ = null_study(np.random.default_rng(7))
    assert paired_bootstrap(gold, a, a) == Interval(0.0, 0.0, 0.0, 1.0)
    assert permutation_test(gold, a, a) == 1.0


def test_permutation_is_exact_on_a_case_that_can_be_enumerated():
    gold = np.array([0, 1, 0, 1, 0, 1])
    a, b = gold.copy(), gold.copy()
    b[:5] = 1 - b[:5]
    observed = abs((gold == a).mean() - (gold == b).mean())
    swaps = [np.where(swap, a == gold, b == gold) for swap in product([0, 1], repeat=6)]
    exact = np.mean([abs(2 * s.mean() - (a == gold).mean() - (b == gold).mean()) >= observed - 1e-12 for s in swaps])
    assert permutation_test(gold, [a], [b], "accuracy", n=20_000) == pytest.approx(exact, abs=0.01)


def test_paired_difference_of_losses():
    rng = np.random.default_rng(8)
    before = rng.normal(3, 0.5, 300)
    after = before + 0.1 + rng.normal(0, 0.2, 300)
    found = paired_difference(after, before, n=4000)
    span = stats.ttest_rel(after, before).confidence_interval()
    assert (found.low, found.high) == pytest.approx((span.low, span.high), abs=2e-3)
    assert found.verdict == "win" and found.p < 0.001
    weights = rng.integers(1, 20, 300)
    weighted = paired_difference(after, before, weights)
    assert weighted.difference == pytest.approx(np.average(after - before, weights=weights))
    several = paired_difference(np.stack([after, after + 0.3]), before)
    assert several.high - several.low > found.high - found.low


@each("case", [([], [[]], [[]]), ([1], [], []), ([1], [[1]], []), ([1, 2], [[1, 2]], [[1]])])
def test_what_cannot_be_compared(case):
    with pytest.raises(ValueError):
        paired_bootstrap(*case)


def test_unknown_metric():
    with pytest.raises(ValueError, match="Available: macro_f1"):
        paired_bootstrap([0], [[0]], [[0]], "f1")


def test_holm_on_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_any_study_gives_a_sound_interval(seeds, items, classes, state):
    rng = np.random.default_rng(state)
    gold = rng.integers(classes, size=items)
    a, b = rng.integers(classes, size=(2, seeds, items))
    interval = paired_bootstrap(gold, a, b, n=50)
    assert np.isfinite([interval.low, interval.high, interval.p]).all()
    assert interval.low <= interval.difference <= interval.high
    assert 0 <= interval.p <= 1
    assert (interval.p < 0.05) == (interval.verdict != "tie")


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_and_keeps_their_order(values):
    adjusted = holm(values)
    assert all(value <= corrected <= 1 for value, corrected in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert list(np.asarray(adjusted)[order]) == sorted(adjusted)


def test_a_single_item_says_nothing_of_others():
    found = paired_bootstrap([1], [[1], [1]], [[0], [0]], "accuracy")
    assert (found.difference, found.low, found.high, found.p, found.verdict) == (1.0, -1.0, 1.0, 1.0, "tie")
    alone = paired_difference([1.0], [0.5])
    assert (alone.difference, alone.p, alone.verdict) == (0.5, 1.0, "tie")


@each("items", [2, 3, 5, 6, 40])
@each("seeds", [1, 3])
def test_a_few_items_that_all_agree_are_no_certainty(items, seeds):
    right, wrong = np.zeros((seeds, items), int), np.ones((seeds, items), int)
    found = paired_bootstrap(np.zeros(items, int), right, wrong, metric="micro_f1")
    assert found.difference == found.high == 1
    assert (found.low, found.verdict) == ((1, "win") if items > 5 else (-1, "tie"))
    assert found.p == pytest.approx(2 * 0.5**items)  # all one way or all the other, of all ways to swap
    assert paired_difference(np.full((seeds, items), 3.0), np.full((seeds, items), 2.0)).p == found.p
    assert paired_difference(np.full((seeds, items), 3.0), np.full((seeds, items), 3.0)).p == 1
