"""How far a score would move on other test items."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from acclimate.evaluation.bootstrap import bootstrap_intervals, bootstrap_weights
from acclimate.evaluation.scoring import MultiLabel, SingleLabel

RNG = np.random.default_rng(0)
GOLD = RNG.integers(3, size=200)
SAID = np.where(RNG.random(200) < 0.7, GOLD, (GOLD + 1) % 3)


def interval(scoring, gold, said, metric, **options):
    """Of one metric, asked for beside another."""
    found = bootstrap_intervals(scoring, gold, said, list(dict.fromkeys([metric, scoring.metrics[0]])), **options)
    return found[metric]


def test_accuracy_moves_as_a_binomial_does():
    accuracy = float((GOLD == SAID).mean())
    low, high = interval(SingleLabel(), GOLD, SAID, "accuracy", n=20_000)
    reach = 1.96 * np.sqrt(accuracy * (1 - accuracy) / 200)
    assert (low, high) == pytest.approx((accuracy - reach, accuracy + reach), abs=0.01)


def test_against_scores_of_resampled_items_one_by_one():
    drawn = []
    for weights in bootstrap_weights(200, 300, seed=4):
        for row in weights.astype(int):
            items = np.repeat(np.arange(200), row)
            drawn.append(f1_score(GOLD[items], SAID[items], average="macro"))
    expected = np.percentile(drawn, [2.5, 97.5])
    assert interval(SingleLabel(), GOLD, SAID, "macro_f1", n=300, seed=4) == pytest.approx(tuple(expected))


def test_items_are_documents_where_a_metric_says_so():
    gold, said = [[0], [0], [1], [1]] * 6, [[0], [0], [1], [0]] * 6
    alone = MultiLabel(classes=2, documents=tuple(range(24)))
    whole = MultiLabel(classes=2, documents=tuple(number % 8 for number in range(24)))
    assert interval(alone, gold, said, "document_f1") != interval(whole, gold, said, "document_f1")


def test_what_is_always_right_has_no_interval():
    assert interval(SingleLabel(), GOLD, GOLD, "macro_f1") == (1.0, 1.0)
