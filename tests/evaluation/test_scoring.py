"""Scorings against handmade cases and scikit-learn, and paired statistics with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from acclimate.base.errors import UserError
from acclimate.evaluation.scoring import MultiLabel, SingleLabel, make_scoring, multi_label_metrics
from acclimate.evaluation.significance import paired_bootstrap, permutation_test
from tests.cases import each

SETS = st.lists(st.sets(st.integers(0, 3)).map(sorted), min_size=1, max_size=12)
EXPECTED_MACRO = (0.04358947757640567, -0.44469428499991615, 0.5318732401527275, 0.7378947748343487)
EXPECTED_ACCURACY = (0.06666666666666667, -0.6690254411426239, 0.8023587744759572, 0.7342178023259618)
EXPECTED_PERMUTATION = 0.06965174129353234


def wave(step, classes, items=40):
    """Return labels that do not depend on a random generator."""
    return [(step * place * place + place) % classes for place in range(items)]


def test_handmade_positive_classes():
    scoring = SingleLabel(negative=(0,))
    gold = [0, 0, 1, 1, 2, 2, 0]
    said = [0, 1, 1, 2, 2, 0, 0]
    # Correct and positive: items 2 and 4. Positive in gold: 4 items; predicted positive: items 1, 2, 3, 4.
    assert scoring.score(gold, said, "positive_micro_f1") == pytest.approx(2 * 2 / (4 + 4))
    assert scoring.score([0, 0], [0, 0], "positive_micro_f1") == 0.0
    assert "positive_micro_f1" not in SingleLabel().metrics
    with pytest.raises(ValueError, match="Unknown metric 'positive_micro_f1'"):
        SingleLabel().counts(gold, said, "positive_micro_f1")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_positive_classes_against_scikit_learn(pairs):
    gold, said = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    theirs = f1_score(gold, said, labels=[1, 2, 4], average="micro", zero_division=0)
    assert SingleLabel((0, 3)).score(gold, said, "positive_micro_f1") == pytest.approx(theirs)


def test_handmade_multi_label_case():
    gold = [[0, 1], [], [2], [0]]
    said = [[0], [], [1, 2], [1]]
    metrics = multi_label_metrics(gold, said, ["a", "b", "c", "never"])
    # a: one hit, one miss; b: one miss, two false alarms; c: one hit.
    assert metrics["per_class"]["a"] == pytest.approx({"precision": 1, "recall": 1 / 2, "f1": 2 / 3, "support": 2})
    assert metrics["per_class"]["b"] == pytest.approx({"precision": 0, "recall": 0, "f1": 0, "support": 1})
    assert metrics["per_class"]["never"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (4 + 4))
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 0 + 1) / 3)  # without the label that does not occur
    assert metrics["subset_accuracy"] == 1 / 4  # the row without labels


@settings(max_examples=40, deadline=None)
@given(SETS, st.randoms())
def test_multi_label_metrics_against_scikit_learn(gold, random):
    said = [sorted({number for number in range(4) if random.random() < 0.4}) for _ in gold]
    metrics = multi_label_metrics(gold, said, list("abcd"))
    truth, shown = (np.array([[number in row for number in range(4)] for row in rows]) for rows in (gold, said))
    assert metrics["micro_f1"] == pytest.approx(f1_score(truth, shown, average="micro", zero_division=0))
    assert metrics["subset_accuracy"] == pytest.approx(accuracy_score(truth, shown))
    every = f1_score(truth, shown, average=None, zero_division=0)
    assert [row["f1"] for row in metrics["per_class"].values()] == pytest.approx(every.tolist())
    occurs = (truth | shown).any(0)
    assert metrics["macro_f1"] == pytest.approx(every[occurs].mean() if occurs.any() else 0)


def test_a_single_label():
    metrics = multi_label_metrics([[0], [], [0]], [[0], [0], []], ["only"])
    assert metrics["per_class"]["only"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}


def test_handmade_documents():
    # Three documents of two sentences each; the last one has no true label and is left out.
    scoring = MultiLabel(classes=4, documents=(0, 0, 1, 1, 2, 2))
    gold = [[0], [1], [2], [], [], []]
    said = [[0], [0, 3], [], [], [1], []]
    # First: {0, 1} against {0, 3}: P 1/2, R 1/2. Second: {2} against nothing: P 0, R 0.
    assert scoring.score(gold, said, "document_f1") == pytest.approx(2 * 0.25 * 0.25 / (0.25 + 0.25))
    # With the label of the second and a false positive: P (1/2 + 1/2) / 2, R (1/2 + 1) / 2.
    assert scoring.score(gold, [*said[:2], [2], [0], [], []], "document_f1") == pytest.approx(
        2 * 0.5 * 0.75 / (0.5 + 0.75)
    )
    assert scoring.score([[]] * 6, said, "document_f1") == 0.0
    assert scoring.counts(gold, said, "document_f1").shape == (3, 3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.sets(st.integers(0, 3))] * 2, st.integers(0, 3)), min_size=1, max_size=12))
def test_documents_against_a_direct_implementation(rows):
    numbers = {name: place for place, name in enumerate(dict.fromkeys(document for *_, document in rows))}
    precisions, recalls = [], []
    for name in numbers:
        true = set().union(*(gold for gold, _, document in rows if document == name))
        said = set().union(*(shown for _, shown, document in rows if document == name))
        if true:
            precisions.append(len(true & said) / len(said) if said else 0.0)
            recalls.append(len(true & said) / len(true))
    p, r = (sum(values) / len(values) if values else 0.0 for values in (precisions, recalls))
    scoring = MultiLabel(4, tuple(numbers[document] for *_, document in rows))
    found = scoring.score([sorted(gold) for gold, *_ in rows], [sorted(shown) for _, shown, _ in rows], "document_f1")
    assert found == pytest.approx(2 * p * r / (p + r) if p + r else 0.0)


def test_statistics_do_not_change():
    gold, a, b = wave(3, 9), [wave(3, 8), wave(5, 9), wave(4, 9)], [wave(7, 9), wave(2, 7), wave(1, 8)]
    found = paired_bootstrap(gold, a, b, "macro_f1", n=200)
    assert (found.difference, found.low, found.high, found.p) == pytest.approx(EXPECTED_MACRO, rel=1e-12)
    found = paired_bootstrap(gold, a, b, "accuracy", n=200, scoring=SingleLabel())
    assert (found.difference, found.low, found.high, found.p) == pytest.approx(EXPECTED_ACCURACY, rel=1e-12)
    assert permutation_test(gold, a, b, "macro_f1", n=200) == EXPECTED_PERMUTATION


def test_multi_label_statistics_of_single_labels():
    gold, a, b = wave(3, 5), [wave(4, 5), wave(5, 4)], [wave(7, 5), wave(2, 3)]
    wrapped, first, second = [[x] for x in gold], *([[[x] for x in run] for run in runs] for runs in (a, b))
    for single, several in (("macro_f1", "macro_f1"), ("accuracy", "micro_f1"), ("accuracy", "subset_accuracy")):
        one = paired_bootstrap(gold, a, b, single, n=100)
        other = paired_bootstrap(wrapped, first, second, several, n=100, scoring=MultiLabel(5))
        assert one.as_dict() == pytest.approx(other.as_dict())
        p = permutation_test(wrapped, first, second, several, n=100, scoring=MultiLabel(5))
        assert p == permutation_test(gold, a, b, single, n=100)


def test_documents_are_resampled_whole():
    """With one sentence per document, documents are the items; with a single document the variance is unknown."""
    gold = [[place % 3] for place in range(12)]
    a, b = [[[0, place % 3] for place in range(12)]], [[[1] for _ in range(12)]]
    apart = paired_bootstrap(gold, a, b, "document_f1", n=100, scoring=MultiLabel(3, tuple(range(12))))
    together = paired_bootstrap(gold, a, b, "document_f1", n=100, scoring=MultiLabel(3, (0,) * 12))
    assert apart.low < apart.difference < apart.high
    assert (together.low, together.high) == (-1.0, 1.0)


@each("scoring", [SingleLabel((2,)), MultiLabel(3), MultiLabel(2, (0, 0, 1))])
def test_details_round_trip(scoring):
    details = {name: list(value) if isinstance(value, tuple) else value for name, value in scoring.details().items()}
    assert make_scoring(scoring.name, details) == scoring


def test_an_unknown_kind():
    with pytest.raises(UserError, match="Unknown scoring 'haiku'"):
        make_scoring("haiku", {})
