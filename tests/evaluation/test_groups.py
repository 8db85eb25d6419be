"""Items of one group, such as the sentences of a document, are one unit in every statistic."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from acclimate.evaluation.choice import ChoiceScoring
from acclimate.evaluation.entities import EntityScoring
from acclimate.evaluation.qa import QAScoring
from acclimate.evaluation.regression import RegressionScoring
from acclimate.evaluation.retrieval import RetrievalScoring
from acclimate.evaluation.review import ReviewScoring
from acclimate.evaluation.scoring import MultiLabel, SingleLabel, is_above_chance, make_scoring
from acclimate.evaluation.significance import (
    PairedPredictions,
    bootstrap_intervals,
    common_units,
    item_deviation,
    mean_paired_bootstrap,
    paired_bootstrap,
    paired_difference,
    permutation_test,
    share_interval,
)
from acclimate.labs.auto.racing import item_scores
from acclimate.study.job import JobResult
from acclimate.study.summary import TaskResult, units_of_test
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each

ITEMS, RUNS = 40, 6
FIGURES = {
    "single_label macro_f1": [
        0.0090778532,
        -0.1553343449,
        0.1734900513,
        0.9090501679,
        0.4189481846,
        0.7259569823,
        0.4513948542,
        0.92039801,
    ],
    "single_label accuracy": [
        0.0166666667,
        -0.145931512,
        0.1792648454,
        0.829877164,
        0.425,
        0.725625,
        0.4286616819,
        0.9154228856,
    ],
    "single_label positive_micro_f1": [
        -0.0149893291,
        -0.1901096102,
        0.1601309521,
        0.8612287197,
        0.3664965986,
        0.718,
        0.504376186,
        0.8805970149,
    ],
    "multi_label micro_f1": [
        0.0332052796,
        -0.0945672661,
        0.1609778252,
        0.575767802,
        0.5806217859,
        0.8421463816,
        0.3432079918,
        0.5721393035,
    ],
    "multi_label subset_accuracy": [
        0.0166666667,
        -0.145931512,
        0.1792648454,
        0.829877164,
        0.425,
        0.725625,
        0.4286616819,
        0.9154228856,
    ],
    "multi_label document_f1": [
        0.0087287457,
        -0.2195369799,
        0.2369944714,
        0.8844385418,
        0.63031547,
        0.930618964,
        0.2491028362,
        0.8955223881,
    ],
    "entities macro_f1": [
        0.0478438329,
        -0.1280581797,
        0.2237458456,
        0.5528554598,
        0.4499554329,
        0.789922555,
        0.4419821469,
        0.5422885572,
    ],
    "entities unseen_f1": [
        0.0630808923,
        -0.1320490697,
        0.2582108544,
        0.4990190818,
        0.4863243243,
        0.8501785714,
        0.5631384113,
        0.5024875622,
    ],
    "regression pearson": [
        0.0818488558,
        -0.3769759286,
        0.5406736401,
        0.5229917245,
        0.4111894449,
        0.7975934492,
        0.5548204033,
        0.1791044776,
    ],
    "regression rmse": [
        -0.1445417213,
        -0.3850111809,
        0.0959277382,
        0.2012221285,
        0.7511282815,
        1.0769159277,
        0.6359086021,
        0.2139303483,
    ],
    "regression spearman": [
        0.0900381796,
        -0.4128107169,
        0.5928870761,
        0.5216135069,
        0.3179781131,
        0.8214303398,
        0.6821623371,
        0.1691542289,
    ],
    "choice accuracy": [
        0.0166666667,
        -0.145931512,
        0.1792648454,
        0.829877164,
        0.425,
        0.725625,
        0.4286616819,
        0.9154228856,
    ],
    "qa f1": [-0.0041666667, -0.1052575671, 0.0969242338, 0.9279629323, 0.2746875, 0.5128125, 0.4384006045, 1.0],
    "retrieval ndcg@10": [
        -0.0386652158,
        -0.0887244075,
        0.011393976,
        0.1232394758,
        0.5955734841,
        0.7018454941,
        0.1794686515,
        0.0945273632,
    ],
    "review average_precision": [
        0.2289721254,
        -0.1515553511,
        0.6094996019,
        0.1592334784,
        0.2112399417,
        0.7228731458,
        0.7708231709,
    ],
}
"""Of every scoring, before there were groups: the difference of three seeds each with its interval and p, the interval
of one model, the standard deviation of one item, and the p-value of the permutation test."""


def make_worlds():
    """Return fields of a scoring, gold, and the predictions of six models, by kind and metric."""
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=(RUNS + 1, ITEMS))
    labels[1:] = np.where(rng.random((RUNS, ITEMS)) < 0.5, labels[0], labels[1:])
    labels = labels.tolist()
    sets = [[[kind, 2] if kind else [] for kind in row] for row in labels]
    entities = [[[[0, 2, kind, kind]] if kind < 2 else [] for kind in row] for row in labels]
    values = rng.normal(size=(RUNS + 1, ITEMS)).round(1)
    values[1:] += values[0]
    values = values.tolist()
    words = [[["a", "b c", "b d"][kind] for kind in row] for row in labels]
    ranked = [[[f"d{place}" for place in rng.permutation(6)] for _ in range(ITEMS)] for _ in range(RUNS)]
    relevant = [{f"d{place}": 1.0 + place % 2 for place in rng.permutation(6)[:2]} for _ in range(ITEMS)]
    positive = [int(kind == 0) for kind in labels[0]]
    shown = [[[int(kind == 0), round(rng.random() + (kind == 0), 1)] for kind in row] for row in labels[1:]]
    documents = tuple(place // 2 for place in range(ITEMS))
    return {
        "single_label macro_f1": ({}, labels[0], labels[1:]),
        "single_label accuracy": ({}, labels[0], labels[1:]),
        "single_label positive_micro_f1": ({"negative": (0,)}, labels[0], labels[1:]),
        "multi_label micro_f1": ({"classes": 3}, sets[0], sets[1:]),
        "multi_label subset_accuracy": ({"classes": 3}, sets[0], sets[1:]),
        "multi_label document_f1": ({"classes": 3, "documents": documents}, sets[0], sets[1:]),
        "entities macro_f1": ({"classes": 2}, entities[0], entities[1:]),
        "entities unseen_f1": ({"classes": 2}, entities[0], entities[1:]),
        "regression pearson": ({}, values[0], values[1:]),
        "regression rmse": ({}, values[0], values[1:]),
        "regression spearman": ({}, values[0], values[1:]),
        "choice accuracy": ({"choices": (3,) * ITEMS}, labels[0], labels[1:]),
        "qa f1": ({}, [[word] for word in words[0]], [[[word] for word in row] for row in words[1:]]),
        "retrieval ndcg@10": ({}, relevant, ranked),
        "review average_precision": ({"prevalence": 0.1, "budgets": (0.2,)}, positive, shown),
    }


WORLDS = make_worlds()
KINDS = {
    scoring.name: scoring
    for scoring in (
        SingleLabel,
        MultiLabel,
        EntityScoring,
        RegressionScoring,
        ChoiceScoring,
        QAScoring,
        RetrievalScoring,
        ReviewScoring,
    )
}


def compute_figures(scoring, gold, runs, metric):
    """Return the numbers of :data:`FIGURES`."""
    found = paired_bootstrap(gold, runs[:3], runs[3:], metric, 200, scoring=scoring)
    one = bootstrap_intervals(scoring, gold, runs[0], [metric], 200)[metric]
    spread = item_deviation(gold, runs[:3], metric, scoring, 200)
    figures = [found.difference, found.low, found.high, found.p, *one, spread]
    if metric != "average_precision":  # no function of sums over items, so nothing can be swapped
        figures.append(permutation_test(gold, runs[:3], runs[3:], metric, 200, scoring=scoring))
    return figures


@each("name", WORLDS)
def test_groups_of_one_change_nothing(name):
    kind, metric = name.split()
    fields, gold, runs = WORLDS[name]
    plain = compute_figures(KINDS[kind](**fields), gold, runs, metric)
    assert plain == pytest.approx(FIGURES[name], abs=1e-9)
    # Groups of `document_f1` are not finer than its documents.
    groups = fields.get("documents", tuple(range(ITEMS)))
    assert compute_figures(KINDS[kind](**fields, groups=groups), gold, runs, metric) == plain


@each("name", WORLDS)
def test_a_group_is_one_unit_in_every_scoring(name):
    """Every item four times, in one group, is no more evidence than every item once."""
    kind, metric = name.split()
    fields, gold, runs = WORLDS[name]
    once = compute_figures(KINDS[kind](**fields), gold, runs, metric)
    longer = {name: value * 4 if isinstance(value, tuple) and len(value) == ITEMS else value
              for name, value in fields.items()}  # fmt: skip
    groups = fields.get("documents", tuple(range(ITEMS))) * 4
    if "documents" in fields:
        longer["documents"] = tuple(place + ITEMS * copy // 2 for copy in range(4) for place in fields["documents"])
    scoring = KINDS[kind](**longer, groups=groups, group_name="passage")
    assert compute_figures(scoring, gold * 4, [run * 4 for run in runs], metric) == pytest.approx(once, abs=1e-9)
    if kind != ReviewScoring.name:  # is not stored
        assert make_scoring(kind, json.loads(json.dumps(scoring.details()))) == scoring


def clustered_error(values, groups, weights=None):
    """The standard error of a weighted mean with independent groups (Liang and Zeger, 1986, with G / (G - 1))."""
    weights = np.ones(len(values)) if weights is None else weights
    residuals = weights * (values - np.average(values, weights=weights))
    sums = np.bincount(groups, residuals)
    return np.sqrt(len(sums) / (len(sums) - 1) * (sums**2).sum()) / weights.sum()


def make_clusters(rng, groups=60):
    """Values of items in groups of one to nine, which have a large effect, and weights that go with the values."""
    sizes = rng.integers(1, 10, groups)
    members = np.repeat(np.arange(groups), sizes)
    values = rng.normal(0, 1, groups)[members] + rng.normal(0, 0.5, len(members))
    return members, values, rng.integers(1, 9, len(members)) * np.where(values > 0, 3.0, 1.0)


def test_errors_are_clustered_standard_errors():
    """That of a weighted mean as well, which only dividing by the resampled weight gives."""
    rng = np.random.default_rng(8)
    members, values, weights = make_clusters(rng)
    none = np.zeros(len(values))
    for weight in (None, weights):
        found = paired_difference(values, none, weight, n=20_000, groups=members.tolist())
        expected = clustered_error(values, members, weight)
        assert found.error == pytest.approx(expected, rel=0.03)
        assert found.error > 1.5 * paired_difference(values, none, weight).error and found.freedom == 59
        alone = paired_difference(values, none, weight, n=20_000)
        single = clustered_error(values, np.arange(len(values)), weight)
        assert alone.error == pytest.approx(single, rel=0.03)
        width = 2 * stats.t.ppf(0.975, len(values) - 1) * single
        assert alone.high - alone.low == pytest.approx(width, rel=0.03)
    hits = (values > 0).astype(int)
    scoring = SingleLabel(groups=tuple(members.tolist()))
    found = paired_bootstrap([1] * len(hits), [hits], [hits * 0], "accuracy", 20_000, scoring=scoring)
    assert found.error == pytest.approx(clustered_error(hits, members), rel=0.03) and found.freedom == 59
    spread = item_deviation([1] * len(hits), [hits], "accuracy", scoring, 20_000)
    assert spread == pytest.approx(clustered_error(hits, members) * np.sqrt(59), rel=0.03)
    low, high = bootstrap_intervals(scoring, [1] * len(hits), hits.tolist(), ["accuracy"])["accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * clustered_error(hits, members), rel=0.06)


@each("metric", ["accuracy", "macro_f1"])
def test_the_permutation_test_swaps_whole_groups(metric):
    rng = np.random.default_rng(3)
    members = np.repeat(np.arange(10), rng.integers(1, 7, 10))
    gold = rng.integers(3, size=len(members))
    a, b = (np.where(rng.random((2, len(gold))) < 0.5 + share, gold, rng.integers(3, size=(2, len(gold))))
            for share in (0.15, 0.0))  # fmt: skip
    scoring = SingleLabel(groups=tuple(members.tolist()))

    def difference(swapped):
        ours, theirs = np.where(swapped[members], b, a), np.where(swapped[members], a, b)
        scores = [[scoring.score(gold, row.tolist(), metric) for row in side] for side in (ours, theirs)]
        return np.mean(scores[0]) - np.mean(scores[1])

    every = [abs(difference(np.array(swap))) for swap in itertools.product([False, True], repeat=10)]
    exact = np.mean(np.array(every) >= every[0] - 1e-12)
    assert 0.01 < exact < 0.9
    found = permutation_test(gold, a, b, metric, n=20_000, scoring=scoring)
    assert found == pytest.approx(exact, abs=0.012)
    alone = permutation_test(gold, a, b, metric, n=2000)
    assert abs(alone - exact) > 0.02, "the groups do not matter in this example"


def test_answers_that_only_follow_the_group_are_not_learned():
    """Truth and answers depend on the document, but not on each other."""
    rng = np.random.default_rng(0)
    members = np.repeat(np.arange(20), 20)
    learned = {False: 0, True: 0}
    for _ in range(40):
        gold, answers = (rng.integers(2, size=20)[members].tolist() for _ in range(2))
        for known in learned:
            scoring = SingleLabel(groups=tuple(members.tolist()) if known else None)
            learned[known] += is_above_chance(gold, [answers], "accuracy", scoring)
    assert learned[True] <= 4 and learned[False] >= 8, learned
    gold = rng.integers(2, size=400).tolist()
    right = [label if rng.random() < 0.65 else 1 - label for label in gold]
    for groups in (None, tuple(range(400)), tuple(members.tolist())):
        assert is_above_chance(gold, [right], "accuracy", SingleLabel(groups=groups))


def test_chance_in_multiple_choice_knows_groups():
    """20 of 40 questions right is better than chance, unless all of them are about 5 of 10 texts."""
    gold, predicted = [0, 1, 2, 3] * 10, [0, 1, 2, 3] * 5 + [1, 0, 3, 2] * 5
    texts = tuple(place // 4 for place in range(40))
    assert ChoiceScoring((4,) * 40).find_collapse(gold, predicted) is None
    assert ChoiceScoring((4,) * 40, groups=tuple(range(40))).find_collapse(gold, predicted) is None
    assert "no better than chance" in ChoiceScoring((4,) * 40, groups=texts).find_collapse(gold, predicted).reason


def test_the_interval_of_a_share():
    hits = [1] * 12 + [0] * 28
    oracle = stats.binomtest(12, 40).proportion_ci(method="wilson")
    for groups in (None, list(range(40))):
        assert share_interval(hits, groups) == pytest.approx((oracle.low, oracle.high))
    # Four copies of each item are worth one, but for the degree of freedom that a variance costs.
    low, high = share_interval(hits * 4, list(range(40)) * 4)
    assert high - low == pytest.approx(oracle.high - oracle.low, rel=0.02)
    assert share_interval([1, 1, 1, 1], [0, 0, 1, 1]) == share_interval([1, 1]), "no variance is estimated"


def predictions_of(gold, share, seeds, rng):
    """Predictions that are right for this share of the items."""
    return [[label if rng.random() < share else 1 - label for label in gold] for _ in range(seeds)]


def test_tasks_on_one_test_set_see_the_same_resample():
    rng = np.random.default_rng(4)
    gold = rng.integers(2, size=80).tolist()
    a, b = (predictions_of(gold, share, 1, rng) for share in (0.7, 0.6))  # one seed: the error is that of the items
    task = PairedPredictions(gold, a, b, "accuracy", SingleLabel())
    one = mean_paired_bootstrap([task])
    assert mean_paired_bootstrap([task] * 5).error == pytest.approx(one.error), "five levels of one task"
    apart = mean_paired_bootstrap([task._replace(names=f"texts {number}") for number in range(5)])
    assert apart.error < 0.9 * one.error, "five test sets"
    other = PairedPredictions([1 - label for label in gold], a, b, "accuracy", SingleLabel(), "the texts")
    same = mean_paired_bootstrap([task._replace(names="the texts"), other])
    assert same.error < 1e-9, "what the other labels of the same texts lose"
    # Two periods that share half of their authors.
    first = PairedPredictions(gold, a, b, "accuracy", SingleLabel(), [f"author {number}" for number in range(80)])
    rolled = [np.roll(values, -40, -1).tolist() for values in (gold, a, b)]  # author 40 comes first
    half = PairedPredictions(*rolled, "accuracy", SingleLabel(), [f"author {number}" for number in range(40, 120)])
    nearly = PairedPredictions(gold[1:], [a[0][1:]], [b[0][1:]], "accuracy", SingleLabel())
    named = [frozenset([number]) for number in range(80)]
    most = mean_paired_bootstrap([task._replace(names=named), nearly._replace(names=named[1:])])
    assert most.error == pytest.approx(one.error, rel=0.05), "test sets that differ by a row"
    errors = [mean_paired_bootstrap([first, second]).error for second in (first, half, first._replace(names="other"))]
    assert errors[0] > 1.1 * errors[1] > 1.2 * errors[2], errors
    scores = item_scores([task, task._replace(a=b)])
    assert scores.shape == (1, 80), "the race counts each item once"
    assert item_scores([task, task._replace(names="other")]).shape == (1, 160)


@given(st.lists(st.integers(0, 9), min_size=24, max_size=40), st.sets(st.integers(0, 39), max_size=8), st.booleans())
@settings(max_examples=15, deadline=None)
def test_test_sets_have_the_items_in_common_that_both_have(places, dropped, grouped):
    """Two tasks on one file, of which the second has fewer rows and may know no groups."""
    rows = [{"text": f"text {n % 20}", "label": n % 2, "document": f"d{place}"} for n, place in enumerate(places)]
    other = [row for n, row in enumerate(rows) if n not in dropped]
    other = [row if grouped else {"text": row["text"], "label": 1 - row["label"]} for row in other]
    tasks = [Task.of(name, rows, part) for name, part in (("one", rows), ("two", other))]
    pairs = []
    for task in tasks:
        gold = [row.label for row in task.test]
        result = TaskResult(gold=gold, predicted=gold, metrics={}, scoring=task.scoring().details())
        units = units_of_test([JobResult(SimpleNamespace(task=task), result)], "accuracy")
        pairs.append(PairedPredictions(gold, [gold], None, "accuracy", task.scoring(), units))
    sizes = [len(task.names) for task in pairs]
    assert sizes == [task.scoring.resampler(task.gold, task.gold, "accuracy")[0] for task in pairs]
    first, second = common_units(pairs, sizes)
    if not dropped and grouped:
        assert first == second
    assert set(second) <= set(first), "each item of the second is one of the first"
    assert item_scores(pairs).shape == (1, len(set(first)))


@pytest.mark.slow
@each(("groups", "size"), [(100, 5), (50, 10), (20, 20)])
def test_false_claims_with_groups(groups, size):
    """No true difference, three seeds, 2,000 worlds: methods differ by an effect of the passage, of mean zero."""
    members = np.repeat(np.arange(groups), size)
    scoring, gold = SingleLabel(groups=tuple(members.tolist())), np.ones(len(members), int)
    for effect in (0.0, 0.5, 1.0):
        rng, false = np.random.default_rng(int(10 * effect)), 0
        for _ in range(2000):
            ease = rng.normal(0.5, 1, len(members))
            sides = [ease + rng.normal(0, effect, groups)[members] + rng.normal(0, 0.1, (3, 1)) for _ in range(2)]
            a, b = ((rng.random((3, len(members))) < 1 / (1 + np.exp(-logits))).astype(int) for logits in sides)
            found = paired_bootstrap(gold, a, b, "accuracy", 400, int(rng.integers(1 << 30)), scoring=scoring)
            false += found.verdict != "no difference shown"
        assert false <= 0.065 * 2000, effect


@pytest.mark.slow
def test_the_mean_over_levels_of_one_task_claims_no_difference():
    """Five numbers of labels, no true difference between two methods, three seeds, one test set."""
    rng, false = np.random.default_rng(1), 0
    gold = np.ones(200, int)
    for _ in range(2000):
        ease, own = rng.normal(0.5, 1, 200), rng.normal(0, 1, (2, 200))
        tasks = []
        for level in range(5):
            sides = [ease + 0.2 * level + side + rng.normal(0, 0.1, (3, 1)) for side in own]
            a, b = ((rng.random((3, 200)) < 1 / (1 + np.exp(-logits))).astype(int) for logits in sides)
            tasks.append(PairedPredictions(gold, a, b, "accuracy", SingleLabel()))
        false += mean_paired_bootstrap(tasks, 400, int(rng.integers(1 << 30))).verdict != "no difference shown"
    assert false <= 0.065 * 2000
