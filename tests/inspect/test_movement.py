"""Movement, the plane and the log-odds on matrices made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.decomposition import PCA

from acclimate.inspect.drift import log_odds, movement, principal_plane

BEFORE = np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
AFTER = np.array([[3.0, 4.0], [0.0, 5.0], [0.0, 1.0], [0.0, 0.0]])


def test_distances_by_hand():
    found = movement(BEFORE, AFTER)
    assert found.distance == pytest.approx((0 + 3 + math.sqrt(2) + 0) / 4)
    assert found.coordinate == pytest.approx(found.distance / math.sqrt(2))
    assert found.share == pytest.approx(found.distance / ((5 + 2 + 1 + 0) / 4))
    assert found.cosine == pytest.approx((1 + 1 + 0) / 3)  # a row of zeros has no direction
    assert (found.moved, found.tokens) == (0.5, 4)


def test_weights_by_hand():
    found = movement(BEFORE, AFTER, np.array([1, 3, 0, 0]))
    assert found.distance == pytest.approx(3 * 3 / 4)
    assert (found.moved, found.tokens) == (0.75, 2)
    assert found.cosine == pytest.approx(1.0)
    for weights in (np.zeros(4), np.ones(3)):
        with pytest.raises(ValueError, match="weights"):
            movement(BEFORE, AFTER, weights)


def test_the_plane_of_a_line_and_a_little():
    """Points along (1, 1, 0) that vary a tenth as much along (0, 0, 1), and not at all across."""
    line = np.array([[-2.0, -2.0, 0.2], [-1.0, -1.0, -0.2], [1.0, 1.0, -0.2], [2.0, 2.0, 0.2]])
    (plane,), shares = principal_plane([line])
    assert plane[:, 0] == pytest.approx([-2 * math.sqrt(2), -math.sqrt(2), math.sqrt(2), 2 * math.sqrt(2)])
    assert plane[:, 1] == pytest.approx([0.2, -0.2, -0.2, 0.2])
    assert shares == pytest.approx((20 / 20.16, 0.16 / 20.16))


def test_the_plane_is_that_of_all_matrices_together():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 6)), rng.normal(1, 2, size=(20, 6))
    planes, shares = principal_plane([one, other])
    theirs = PCA(2).fit(np.concatenate([one, other]))
    for plane, matrix in zip(planes, (one, other), strict=True):
        assert np.abs(plane) == pytest.approx(np.abs(theirs.transform(matrix)), abs=1e-8)
    assert shares == pytest.approx(tuple(theirs.explained_variance_ratio_))
    assert principal_plane([one, other])[0][0] == pytest.approx(planes[0])


def test_log_odds_by_hand():
    domain, other = np.array([9, 1, 0]), np.array([1, 9, 0])
    found = log_odds(domain, other)
    up = (math.log(9.5 / 2.0) - math.log(1.5 / 10.0)) / math.sqrt(1 / 9.5 + 1 / 1.5)
    assert found == pytest.approx([up, -up, 0.0])
    rare = log_odds(np.array([100, 1, 899]), np.array([50, 0, 950]))
    assert rare[0] > rare[1] > 0  # a word that occurs once says less than one that is twice as frequent
