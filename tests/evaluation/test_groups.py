"""Items of one group, such as the sentences of a document, are one unit in every statistic."""

import json

import numpy as np
import pytest

from acclimate.evaluation.choice import ChoiceScoring
from acclimate.evaluation.entities import EntityScoring
from acclimate.evaluation.qa import QAScoring
from acclimate.evaluation.regression import RegressionScoring
from acclimate.evaluation.retrieval import RetrievalScoring
from acclimate.evaluation.review import ReviewScoring
from acclimate.evaluation.scoring import MultiLabel, SingleLabel, make_scoring
from acclimate.evaluation.statistics import bootstrap_intervals, item_deviation, paired_bootstrap, permutation_test
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
    scoring.kind: scoring
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
    if kind != ReviewScoring.kind:  # is not stored
        assert make_scoring(kind, json.loads(json.dumps(scoring.details()))) == scoring
