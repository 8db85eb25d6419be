"""Statistics: coverage of the intervals, exact cases, and agreement with direct implementations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel, is_above_chance
from acclimate.evaluation.significance import (
    Interval,
    PairedPredictions,
    bootstrap_intervals,
    bootstrap_weights,
    holm,
    item_deviation,
    mean_paired_bootstrap,
    paired_bootstrap,
    paired_difference,
    paired_t_test,
    permutation_test,
    weighted_difference,
)
from tests.cases import each


class MeanPrediction(Scoring):
    """A scoring whose score is the mean of the predictions, which are numbers."""

    kind = "mean"
    metrics = ("mean",)

    def item_counts(self, gold, predicted, metric):
        return np.stack([np.asarray(predicted, float), np.ones(len(gold))], -1)

    def value(self, sums, metric):
        return sums[..., 0] / sums[..., 1]


def null_study(rng, seeds=3, items=139, classes=6, seed_effect=0.1):
    """Two methods with the same expected score, each with random effects of items and seeds."""
    prior = 0.5 ** np.arange(classes) + 0.05
    gold = rng.choice(classes, size=items, p=prior / prior.sum())
    ease = rng.normal(1.0, 1.5, items)
    wrong = (gold + rng.integers(1, classes, items)) % classes
    methods = []
    for _ in range(2):
        item_effect = rng.normal(0, 0.5, items)
        runs = []
        for _ in range(seeds):
            shift = rng.normal(0, seed_effect) + rng.normal(0, 1.5 * seed_effect, classes)[gold]
            runs.append(np.where(ease + item_effect + shift + rng.normal(0, 0.7, items) > 0, gold, wrong))
        methods.append(runs)
    return gold, methods[0], methods[1]


def macro(gold, predicted):
    """Macro F1 over the classes that occur: the fastest direct definition, since it is computed thousands of times."""
    found = np.union1d(gold, predicted)[:, None]
    true, said = found == gold, found == predicted
    return np.mean(2 * (true & said).sum(1) / (true.sum(1) + said.sum(1)))


def test_macro_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for classes in (1, 2, 3, 9):
        gold, predicted = rng.integers(0, classes, (2, 20))
        assert macro(gold, predicted) == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))


def coverage(studies, **options):
    rng = np.random.default_rng(1)
    inside = 0
    for number in range(studies):
        interval = paired_bootstrap(*null_study(rng, **options), n=300, seed=number)
        inside += interval.low <= 0 <= interval.high
    return inside / studies


@each("seed_effect", [0.0, 0.3])
def test_coverage_without_a_difference(seed_effect):
    assert coverage(200, seed_effect=seed_effect) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed_effect", [0.1, 0.3])
def test_coverage_is_95_percent_with_five_seeds(seed_effect):
    assert 0.93 <= coverage(1000, seeds=5, seed_effect=seed_effect) <= 0.97


@pytest.mark.slow
def test_resampled_differences_against_scikit_learn():
    gold, a, b = null_study(np.random.default_rng(3), seeds=2, items=60, classes=3)
    pairs = list(zip(a, b, strict=True))
    items, score = weighted_difference(gold, a, b, "macro_f1", SingleLabel())
    (weights,) = bootstrap_weights(items, 200, seed=5)
    expected = []
    for row in weights.astype(int):
        drawn = np.repeat(np.arange(items), row)
        expected.append([macro(gold[drawn], x[drawn]) - macro(gold[drawn], y[drawn]) for x, y in pairs])
    assert score(weights) == pytest.approx(np.array(expected))
    found = paired_bootstrap(gold, a, b, n=200, seed=5)
    assert found.difference == pytest.approx(np.mean([macro(gold, x) - macro(gold, y) for x, y in pairs]))


def test_permutation_test_against_a_direct_implementation():
    gold, a, b = null_study(np.random.default_rng(3), seeds=2, items=60, classes=3)
    pairs, rng, n = list(zip(a, b, strict=True)), np.random.default_rng(0), 100
    observed = np.mean([macro(gold, x) - macro(gold, y) for x, y in pairs])
    hits = 0
    for _ in range(n):
        swap = rng.random(60) < 0.5
        swapped = [(np.where(swap, y, x), np.where(swap, x, y)) for x, y in pairs]
        hits += abs(np.mean([macro(gold, x) - macro(gold, y) for x, y in swapped])) >= abs(observed) - 1e-12
    assert permutation_test(gold, a, b, n=n) == (hits + 1) / (n + 1)


def test_with_one_seed_and_accuracy_it_is_the_paired_t_test():
    gold, a, b = null_study(np.random.default_rng(4), seeds=1, items=400)
    interval = paired_bootstrap(gold, a, b, "accuracy", n=8000)
    expected = stats.ttest_rel((gold == a[0]).astype(float), (gold == b[0]).astype(float))
    span = expected.confidence_interval()
    assert (interval.low, interval.high) == pytest.approx((span.low, span.high), abs=2e-3)
    assert interval.p == pytest.approx(expected.pvalue, abs=0.03)


def test_swapping_the_methods_mirrors_the_interval():
    gold, a, b = null_study(np.random.default_rng(5))
    one, other = paired_bootstrap(gold, a, b), paired_bootstrap(gold, b, a)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert one.p == pytest.approx(other.p)


def test_variance_between_seeds_widens_the_interval():
    gold = np.zeros(500, int)
    gold[250:] = 1
    base = [gold.copy() for _ in range(3)]
    equal, varying = [], []
    for wrong_equal, wrong_varying in ((100, 10), (100, 100), (100, 190)):
        for runs, wrong in ((equal, wrong_equal), (varying, wrong_varying)):
            predicted = gold.copy()
            predicted[:wrong] = 1 - predicted[:wrong]
            runs.append(predicted)
    narrow, wide = (paired_bootstrap(gold, base, runs, "accuracy") for runs in (equal, varying))
    assert narrow.difference == pytest.approx(wide.difference)
    assert narrow.verdict == "helped" and wide.verdict == "no difference shown"
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_seeds_of_one_group_count_once():
    gold, a, b = null_study(np.random.default_rng(6), seeds=2, seed_effect=0.4)
    twice_a, twice_b = [*a, *a], [*b, *b]
    once = paired_bootstrap(gold, a, b)
    grouped = paired_bootstrap(gold, twice_a, twice_b, seed_groups=["x", "y", "x", "y"])
    naive = paired_bootstrap(gold, twice_a, twice_b)
    assert (grouped.low, grouped.high) == pytest.approx((once.low, once.high))
    assert naive.high - naive.low < grouped.high - grouped.low


def grouped_interval(means, groups):
    """Return the interval of scores with variance between groups only."""
    runs = [[mean, mean] for mean in means]
    zeros = [[0, 0]] * len(means)
    return paired_bootstrap([0, 0], runs, zeros, "mean", n=2, seed_groups=groups, scoring=MeanPrediction())


def test_unequal_groups_have_the_same_weights_in_the_estimate_and_its_variance():
    found = grouped_interval([0.1, 0.1, 0, 0, 0], "xxyyz")
    assert found.difference == pytest.approx(0.04)  # the mean over seeds
    variance = np.var([0.1, 0, 0], ddof=1) * (0.4**2 + 0.4**2 + 0.2**2)
    assert found.high - found.difference == pytest.approx(stats.t.ppf(0.975, 2) * variance**0.5)


@pytest.mark.slow
@each("sizes", [(2, 2, 1), (4, 1, 1), (3, 2)])
def test_the_variance_and_coverage_of_unequal_groups(sizes):
    rng = np.random.default_rng(9)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    found = [grouped_interval(rng.normal(0, 1e-3, len(sizes))[groups], groups.tolist()) for _ in range(1000)]
    margins = np.array([interval.high - interval.difference for interval in found])
    claimed = (margins / stats.t.ppf(0.975, len(sizes) - 1)) ** 2
    true = 1e-6 * sum(size**2 for size in sizes) / sum(sizes) ** 2
    assert claimed.mean() / true == pytest.approx(1, abs=4 * (2 / (len(sizes) - 1) / 1000) ** 0.5)
    inside = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert inside == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 1000) ** 0.5)


def test_variance_components_of_unequal_groups_against_a_direct_implementation():
    gold, a, b = null_study(np.random.default_rng(10), seeds=4, items=80, classes=3, seed_effect=0.2)
    groups, n = ["x", "y", "x", "x"], 60
    weights = {"x": 3 / 4, "y": 1 / 4}
    rng, draws, pairs = np.random.default_rng(0), [], list(zip(a, b, strict=True))
    for row in rng.integers(len(gold), size=(n, len(gold))):
        draws.append([macro(gold[row], one[row]) - macro(gold[row], other[row]) for one, other in pairs])
    whole = [macro(gold, one) - macro(gold, other) for one, other in pairs]

    def group_means(values):
        return {
            name: np.mean([value for value, group in zip(values, groups, strict=True) if group == name])
            for name in weights
        }

    unbiased = 80 / 79
    total = [sum(weights[name] * group_means(row)[name] for name in weights) for row in draws]
    joint = np.var(total, ddof=1) * unbiased
    single = {name: np.var([group_means(row)[name] for row in draws], ddof=1) * unbiased for name in weights}
    squares = sum(weight**2 for weight in weights.values())
    # joint = v + sum(w**2) * c and single = v + c; solved for the interaction sum(w**2) * c
    interaction = (sum(weights[name] ** 2 * single[name] for name in weights) - squares * joint) / (1 - squares)
    seeds = np.var(list(group_means(whole).values()), ddof=1) * squares
    variance = max(joint - max(interaction, 0), joint - seeds, 0) + seeds
    found = paired_bootstrap(gold, a, b, n=n, seed_groups=groups)
    freedom = variance**2 / ((variance - seeds) ** 2 / 79 + seeds**2)
    assert found.difference == pytest.approx(np.mean(whole))
    assert interaction > 0
    assert found.high - found.difference == pytest.approx(stats.t.ppf(0.975, freedom) * variance**0.5)


def test_equal_predictions_make_no_difference():
    gold, a, _ = null_study(np.random.default_rng(7))
    assert paired_bootstrap(gold, a, a) == Interval(0.0, 0.0, 0.0, 1.0)
    assert permutation_test(gold, a, a) == 1.0


def test_permutation_test_against_enumeration():
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
    assert found.verdict == "helped" and found.p < 0.001
    weights = rng.integers(1, 20, 300)
    weighted = paired_difference(after, before, weights)
    assert weighted.difference == pytest.approx(np.average(after - before, weights=weights))
    several = paired_difference(np.stack([after, after + 0.3]), before)
    assert several.high - several.low > found.high - found.low


@each("case", [([], [[]], [[]]), ([1], [], []), ([1], [[1]], []), ([1, 2], [[1, 2]], [[1]])])
def test_invalid_shapes(case):
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
def test_any_predictions_give_a_consistent_interval(seeds, items, classes, state):
    rng = np.random.default_rng(state)
    gold = rng.integers(classes, size=items)
    a, b = rng.integers(classes, size=(2, seeds, items))
    interval = paired_bootstrap(gold, a, b, n=50)
    assert np.isfinite([interval.low, interval.high, interval.p]).all()
    assert interval.low <= interval.difference <= interval.high
    assert 0 <= interval.p <= 1
    assert (interval.p < 0.05) == (interval.verdict != "no difference shown")


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_the_order(values):
    adjusted = holm(values)
    assert all(value <= corrected <= 1 for value, corrected in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert list(np.asarray(adjusted)[order]) == sorted(adjusted)


def test_a_single_item_gives_the_widest_interval():
    found = paired_bootstrap([1], [[1], [1]], [[0], [0]], "accuracy")
    assert (found.difference, found.low, found.high, found.p, found.verdict) == (
        1.0,
        -1.0,
        1.0,
        1.0,
        "no difference shown",
    )
    alone = paired_difference([1.0], [0.5])
    assert (alone.difference, alone.p, alone.verdict) == (0.5, 1.0, "no difference shown")


@each("items", [2, 3, 5, 6, 40])
@each("seeds", [1, 3])
def test_up_to_five_items_that_agree_are_not_significant(items, seeds):
    right, wrong = np.zeros((seeds, items), int), np.ones((seeds, items), int)
    found = paired_bootstrap(np.zeros(items, int), right, wrong, metric="micro_f1")
    assert found.difference == found.high == 1
    assert (found.low, found.verdict) == ((1, "helped") if items > 5 else (-1, "no difference shown"))
    assert found.p == pytest.approx(2 * 0.5**items)  # two of all possible swaps
    assert paired_difference(np.full((seeds, items), 3.0), np.full((seeds, items), 2.0)).p == found.p
    assert paired_difference(np.full((seeds, items), 3.0), np.full((seeds, items), 3.0)).p == 1


@each("seeds", [2, 3, 10])
def test_paired_t_test_against_scipy(seeds):
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.70, 0.02, seeds), rng.normal(0.68, 0.02, seeds)
    assert paired_t_test(a, b) == pytest.approx(stats.ttest_1samp(a - b, 0).pvalue, rel=1e-9)
    assert paired_t_test(a, b) == pytest.approx(paired_t_test(b, a))


def test_paired_t_test_by_hand():
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3); t = 2 sqrt(3) with 2 degrees of freedom.
    t = 2 * 3**0.5
    assert paired_t_test([2, 4, 6], [1, 2, 3]) == pytest.approx(1 - t / (t**2 + 2) ** 0.5)


def test_paired_t_test_without_variance():
    assert paired_t_test([0.5], [0.4]) is None
    assert paired_t_test([0.5, 0.6], [0.5, 0.6]) == 1.0
    assert paired_t_test([0.75, 0.5], [0.5, 0.25]) == 0.0
    with pytest.raises(ValueError, match="as many seeds"):
        paired_t_test([0.5, 0.6], [0.5])


RNG = np.random.default_rng(0)
GOLD = RNG.integers(3, size=200)
PREDICTED = np.where(RNG.random(200) < 0.7, GOLD, (GOLD + 1) % 3)


def score_interval(scoring, gold, predicted, metric, **options):
    """Return the interval of a metric, computed together with that of another one."""
    metrics = list(dict.fromkeys([metric, scoring.metrics[0]]))
    return bootstrap_intervals(scoring, gold, predicted, metrics, **options)[metric]


def test_the_interval_of_accuracy_is_binomial():
    accuracy = float((GOLD == PREDICTED).mean())
    low, high = score_interval(SingleLabel(), GOLD, PREDICTED, "accuracy", n=20_000)
    margin = 1.96 * np.sqrt(accuracy * (1 - accuracy) / 200)
    assert (low, high) == pytest.approx((accuracy - margin, accuracy + margin), abs=0.01)


def test_the_interval_of_a_score_against_a_direct_implementation():
    scores = []
    for weights in bootstrap_weights(200, 300, seed=4):
        for row in weights.astype(int):
            items = np.repeat(np.arange(200), row)
            scores.append(macro(GOLD[items], PREDICTED[items]))
    expected = np.percentile(scores, [2.5, 97.5])
    assert score_interval(SingleLabel(), GOLD, PREDICTED, "macro_f1", n=300, seed=4) == pytest.approx(tuple(expected))


def test_items_are_documents_for_a_metric_over_documents():
    gold, predicted = [[0], [0], [1], [1]] * 6, [[0], [0], [1], [0]] * 6
    single = MultiLabel(classes=2, documents=tuple(range(24)))
    grouped = MultiLabel(classes=2, documents=tuple(number % 8 for number in range(24)))
    intervals = [score_interval(scoring, gold, predicted, "document_f1") for scoring in (single, grouped)]
    assert intervals[0] != intervals[1]


def test_a_perfect_score_has_a_degenerate_interval():
    assert score_interval(SingleLabel(), GOLD, GOLD, "macro_f1") == (1.0, 1.0)


def test_the_mean_over_equal_tasks_has_a_narrower_interval():
    gold, a, b = null_study(np.random.default_rng(11), seeds=4, items=400, seed_effect=0.0)
    task = PairedPredictions(gold, a, b, "accuracy", SingleLabel())
    one = mean_paired_bootstrap([task])
    four = mean_paired_bootstrap([task._replace(names=f"texts {number}") for number in range(4)])
    assert one == paired_bootstrap(gold, a, b, "accuracy") and four.difference == pytest.approx(one.difference)
    assert 0.4 < (four.high - four.low) / (one.high - one.low) < 0.9  # the items of each task are independent


def test_the_mean_over_tasks_keeps_what_seeds_have_in_common():
    """An adaptation that is better on all tasks does not average out."""
    gold = np.arange(300) % 3
    rng = np.random.default_rng(12)
    tasks = []
    for _ in range(4):
        a = [np.where(rng.random(300) < share, gold, (gold + 1) % 3) for share in (0.5, 0.6, 0.7)]
        b = [np.where(rng.random(300) < 0.6, gold, (gold + 1) % 3) for _ in range(3)]
        tasks.append(PairedPredictions(gold, a, b, "accuracy", SingleLabel()))
    found = mean_paired_bootstrap(tasks)
    assert found.high - found.low > 0.3 and found.verdict == "no difference shown"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 3), st.sampled_from(SingleLabel().metrics))
def test_one_answer_for_all_items_is_never_above_chance(gold, answer, metric):
    assert not is_above_chance(gold, [[answer] * len(gold)] * 3, metric, SingleLabel())
    labels = [[label] for label in gold]
    assert not is_above_chance(labels, [[[answer]] * len(gold)], "micro_f1", MultiLabel(4))


@each(("share", "expected"), [(1 / 3, False), (0.45, True), (0.9, True)])
@each("metric", ["macro_f1", "accuracy"])
def test_answers_that_depend_on_the_item_are_above_chance(share, expected, metric):
    rng = np.random.default_rng(13)
    gold = (np.arange(300) % 3).tolist()
    runs = []
    for _ in range(4):
        shuffled = rng.permutation(gold)
        runs.append(np.where(rng.random(300) < 1.5 * (share - 1 / 3), gold, shuffled).tolist())
    assert is_above_chance(gold, runs, metric, SingleLabel()) == expected


def test_a_score_below_that_of_the_most_frequent_answer_is_not_above_chance():
    gold = [0] * 90 + [1] * 10
    predicted = [0] * 80 + [1] * 20  # accuracy 0.9 by finding all of the rare class
    assert not is_above_chance(gold, [predicted], "accuracy", SingleLabel())
    assert is_above_chance(gold, [predicted], "macro_f1", SingleLabel())


def test_the_deviation_of_a_score_with_one_item():
    rng = np.random.default_rng(0)
    for items in (200, 800):  # it does not depend on the number of items
        gold = rng.integers(2, size=items)
        runs = [np.where(rng.random(items) < share, gold, 1 - gold) for share in (0.9, 0.6)]
        shares = [np.mean(run == gold) for run in runs]
        expected = np.sqrt(np.mean([share * (1 - share) for share in shares]))
        assert item_deviation(gold, runs, "accuracy", SingleLabel()) == pytest.approx(expected, rel=0.05)
    assert item_deviation(gold, [gold], "accuracy", SingleLabel()) == 0


def test_scales_divide_the_difference_of_each_task():
    rng = np.random.default_rng(1)
    gold = rng.integers(3, size=150)
    sides = [[np.where(rng.random(150) < share, gold, 0) for _ in range(4)] for share in (0.8, 0.7)]
    tasks = [PairedPredictions(gold, *sides, "accuracy", SingleLabel()) for _ in range(2)]
    plain, halved = (mean_paired_bootstrap(tasks, scales=scales) for scales in (None, [0.5, 0.5]))
    assert halved.difference == pytest.approx(2 * plain.difference) and halved.p == pytest.approx(plain.p)
    assert (halved.low, halved.high) == pytest.approx((2 * plain.low, 2 * plain.high))
    alone = [mean_paired_bootstrap([task._replace(a=side, b=None)]).difference for task in tasks[:1] for side in sides]
    assert alone[0] - alone[1] == pytest.approx(paired_bootstrap(gold, *sides, "accuracy").difference)
