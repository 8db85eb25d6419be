"""Classification metrics against a handmade case and scikit-learn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import classification_report

from acclimate.evaluation.scoring import NAMES, classification_metrics
from tests.cases import each


def test_handmade_case():
    #            a  a  a  b  b  c
    gold = [0, 0, 0, 1, 1, 2]
    predicted = [0, 0, 1, 1, 0, 1]
    metrics = classification_metrics(gold, predicted, ["a", "b", "c"])
    # a: precision 2/3, recall 2/3; b: precision 1/3, recall 1/2; c: never predicted
    assert metrics["accuracy"] == pytest.approx(3 / 6)
    assert metrics["micro_f1"] == pytest.approx(3 / 6)
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 2 / 5 + 0) / 3)
    assert metrics["per_class"]["b"] == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": 2 / 5, "support": 2})
    assert metrics["per_class"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1}


def test_a_class_that_does_not_occur_is_listed_but_not_averaged():
    metrics = classification_metrics([0, 1], [0, 1], ["a", "b", "absent"])
    assert metrics["macro_f1"] == 1.0
    assert metrics["per_class"]["absent"]["support"] == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_against_scikit_learn(pairs):
    gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    metrics = classification_metrics(gold, predicted, list("abcd"))
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"])
    assert metrics["accuracy"] == pytest.approx(report["accuracy"])
    assert metrics["micro_f1"] == pytest.approx(metrics["accuracy"])
    for number in set(gold) | set(predicted):
        assert metrics["per_class"]["abcd"[number]]["f1"] == pytest.approx(report[str(number)]["f1-score"])
    assert set(metrics) == {*NAMES, "per_class"}


@each(("gold", "predicted"), [([], []), ([0], [0, 1]), ([0], [2]), ([-1], [0])])
def test_invalid_input(gold, predicted):
    with pytest.raises(ValueError, match=r"compared|outside"):
        classification_metrics(gold, predicted, ["a", "b"])
