"""Span masking: lengths and positions of spans follow their distributions."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.parts.masking import get
from tests.parts.masking.kinds import vocabulary


def spans(text_words=4000, texts=50, rate=0.05, **settings):
    """Return the first word and the length of each span, in texts of one-token words."""
    ids = np.full((texts, text_words), 30)
    number = np.repeat(np.arange(texts), text_words).reshape(ids.shape)
    leader = get("span", rate, **settings).choose(
        ids, number, np.ones_like(ids, bool), vocabulary("bert"), np.random.default_rng(0)
    )
    first, length = np.unique(leader[leader >= 0], return_counts=True)
    assert all(
        (leader.ravel()[start : start + size] == start).all() for start, size in zip(first, length, strict=True)
    )
    return first % text_words, length


def test_lengths_have_a_truncated_geometric_distribution():
    _, length = spans()
    share = np.bincount(length, minlength=11)[1:] / len(length)
    expected = 0.2 * 0.8 ** np.arange(10)
    expected /= expected.sum()
    assert length.max() == 10
    # Spans that meet another one or reach the rate are shorter, so the distribution is slightly shifted.
    assert np.abs(share - expected).max() < 0.03
    assert abs(length.mean() - 3.8) < 0.3
    _, short = spans(longest=3, p=0.5)
    assert short.max() == 3


def test_positions_are_uniform():
    start, _ = spans()
    tenths = np.bincount(start // 400, minlength=10)
    assert tenths.min() > 0.7 * tenths.mean()


def test_invalid_parameters():
    for invalid in ({"p": 0}, {"p": 1}, {"longest": 0}):
        with pytest.raises(UserError, match="span: 'p'"):
            get("span", **invalid)
