"""Mixes that are known before the training: fixed weights; how a mix is read and checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.mix.base import MIXES, Round, read_mix
from tests.cases import each
from tests.data.moments import check_refusal, check_weights, proposals


@each(
    ("mix", "moments", "weights"),
    [
        ("fixed", [0], [[1 / 3, 1 / 3, 1 / 3]]),
        ({"fixed": "size"}, [0], [[0.1, 0.3, 0.6]]),
        ("fixed domain=3 law=1", [0], [[0.75, 0.25, 0]]),
    ],
)
def test_weights_are_those_of_the_definition(mix, moments, weights):
    check_weights(mix, moments, weights)


@each(
    ("mix", "message"),
    [
        ("fixd", "Unknown mix 'fixd'"),
        ("fixed domain", "NAME parameter=value"),
        ("fixed 'domain=1", "NAME parameter=value"),
        (3, "not 3"),
        ({"fixed": 1, "phases": 2}, "A mix is NAME"),
        ("fixed domain=-1", "nonnegative"),
        ("fixed domain=0", "not all 0"),
        ("fixed domain=much", "parameter 'weights"),
        ("fixed weights=large", "equal, size"),
        ("fixed nws=1", "Did you mean 'news'"),
    ],
)
def test_invalid_mixes_are_explained(mix, message):
    check_refusal(mix, message)


def test_proposals_are_checked():
    mix = read_mix("fixed")
    for wrong in ([0.5, 0.5], [0.5, 0.6, -0.1], [0.5, np.nan, 0.5], [0.2, 0.2, 0.2]):
        object.__setattr__(mix, "propose", lambda history, wrong=wrong: np.array(wrong))
        with pytest.raises(UserError, match="expected 3 nonnegative numbers with the sum 1"):
            proposals(mix)


def test_the_identity_and_the_description_name_the_parameters():
    assert read_mix("fixed domain=0.7 law=0.3").describe() == "fixed domain=0.7 law=0.3"
    assert all(MIXES.lookup(name).summary and MIXES.lookup(name).__doc__ for name in MIXES.names())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=3))
def test_a_round_is_restored_from_json(values):
    one = Round(3, np.arange(len(values)), train_loss=np.array(values), gradients=np.eye(len(values)))
    again = Round.from_dict(one.to_dict())
    np.testing.assert_array_equal(again.train_loss, one.train_loss)
    np.testing.assert_array_equal(again.gradients, one.gradients)
    assert again.step == 3 and again.heldout_loss is None
