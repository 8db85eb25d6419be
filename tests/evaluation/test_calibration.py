"""Calibration metrics against handmade cases and a direct implementation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.evaluation.calibration import calibration_metrics, expected_calibration_error, pool_bins
from tests.cases import each


def test_handmade_single_label_case():
    found = calibration_metrics([[0.9, 0.1], [0.7, 0.3], [0.65, 0.35], [0.2, 0.8]], [0, 1, 0, 1], bins=5)
    # (0.6, 0.8]: 0.7 wrong, 0.65 right, 0.8 right; (0.8, 1]: 0.9 right.
    assert [(entry["low"], entry["high"], entry["count"]) for entry in found["reliability"]] == [
        (0.6, 0.8, 3),
        (0.8, 1.0, 1),
    ]
    assert found["reliability"][0]["confidence"] == pytest.approx(2.15 / 3)
    assert found["reliability"][0]["accuracy"] == pytest.approx(2 / 3)
    assert found["ece"] == pytest.approx(3 / 4 * (2.15 / 3 - 2 / 3) + 1 / 4 * (1 - 0.9))
    squares = 2 * (0.1**2 + 0.7**2 + 0.35**2 + 0.2**2)  # both classes have the same error
    assert found["brier"] == pytest.approx(squares / 4)
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.3, 0.65, 0.8))) / 4)


def test_handmade_multi_label_case():
    found = calibration_metrics([[0.9, 0.4], [0.2, 0.6]], [[0], [0, 1]], bins=2)
    # Decisions: 0.9 right; 0.6 for "no", right; 0.8 for "no", wrong; 0.6 right. All lie in (0.5, 1].
    assert found["ece"] == pytest.approx(abs(3 / 4 - (0.9 + 0.6 + 0.8 + 0.6) / 4))
    assert found["brier"] == pytest.approx((0.1**2 + 0.4**2 + 0.8**2 + 0.4**2) / 4)
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.6, 0.2, 0.6))) / 4)
    assert found["reliability"][0]["count"] == 4


def test_a_perfect_and_a_useless_classifier():
    sure = [[1.0, 0.0]] * 4
    assert calibration_metrics(sure, [0] * 4)["ece"] == calibration_metrics(sure, [0] * 4)["nll"] == 0
    wrong = calibration_metrics(sure, [1] * 4)
    assert (wrong["ece"], wrong["brier"]) == (1, 2) and 80 < wrong["nll"] < 90


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30), st.integers(1, 20))
def test_any_probabilities(pairs, bins):
    rows, gold = [[p, 1 - p] for p, _ in pairs], [int(second) for _, second in pairs]
    found = calibration_metrics(rows, gold, bins)
    assert sum(entry["count"] for entry in found["reliability"]) == len(pairs)
    assert all(entry["low"] - 1e-9 <= entry["confidence"] <= entry["high"] + 1e-9 for entry in found["reliability"])
    assert 0 <= found["ece"] <= 1 and 0 <= found["brier"] <= 2 and math.isfinite(found["nll"])
    assert calibration_metrics(rows[::-1], gold[::-1], bins) == found  # exactly equal in any order


# Avoids probabilities at the edges of bins, where rounding decides.
@given(st.lists(st.tuples(st.integers(0, 996), st.booleans()), min_size=1, max_size=30), st.integers(1, 20))
def test_against_a_direct_implementation(pairs, bins):
    probabilities = [(2 * number + 1) / 1994 for number, _ in pairs]
    rows, gold = [[p, 1 - p] for p in probabilities], [int(second) for _, second in pairs]
    sure = [(max(row), (row[0] < row[1]) == truth) for row, truth in zip(rows, gold, strict=True)]
    error = 0.0
    for number in range(bins):
        inside = [pair for pair in sure if number / bins < pair[0] <= (number + 1) / bins]
        if inside:
            gap = sum(right for _, right in inside) / len(inside) - sum(p for p, _ in inside) / len(inside)
            error += len(inside) / len(sure) * abs(gap)
    assert calibration_metrics(rows, gold, bins)["ece"] == pytest.approx(error)


def test_pooled_bins_equal_those_of_all_predictions():
    rows, gold = [[0.9, 0.1], [0.7, 0.3], [0.65, 0.35], [0.2, 0.8], [0.5, 0.5]], [0, 1, 0, 1, 1]
    whole = calibration_metrics(rows, gold)
    joined = pool_bins(
        [
            calibration_metrics(rows[:2], gold[:2])["reliability"],
            calibration_metrics(rows[2:], gold[2:])["reliability"],
        ]
    )
    assert len(joined) == len(whole["reliability"])
    for one, other in zip(joined, whole["reliability"], strict=True):
        assert one == pytest.approx(other)
    assert expected_calibration_error(joined) == pytest.approx(whole["ece"])


@each(("rows", "gold"), [([], []), ([[1.0]], [0, 0])])
def test_invalid_input(rows, gold):
    with pytest.raises(ValueError, match="do not match"):
        calibration_metrics(rows, gold)
