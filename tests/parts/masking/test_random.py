"""Random masking: shares, tokens that are never chosen, and the order of the random draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.parts.masking import IGNORE_INDEX, RandomMasking, Vocabulary, get, resolve

VOCABULARY = Vocabulary(mask_id=4, ordinary=np.arange(10, 60))


def mask(strategy, ids, allowed, seed=0):
    text = np.zeros_like(ids)
    return strategy(ids, text, allowed, VOCABULARY, np.random.default_rng(seed))


def test_rate_and_replacement_shares():
    ids = np.full((200, 500), 30)
    corrupted, labels = mask(RandomMasking(0.15), ids, np.ones_like(ids, bool))
    chosen = labels != IGNORE_INDEX
    assert abs(chosen.mean() - 0.15) < 0.005
    assert abs((corrupted[chosen] == 4).mean() - 0.8) < 0.02
    assert abs((corrupted[chosen] == 30).mean() - 0.1 - 0.1 / 50) < 0.02
    assert (labels[chosen] == 30).all()
    assert (corrupted[~chosen] == 30).all()


@given(st.integers(0, 2**31), st.floats(0.01, 0.99), st.lists(st.booleans(), min_size=1, max_size=40))
def test_tokens_that_are_not_allowed_are_never_chosen(seed, rate, allowed):
    ids = np.arange(len(allowed)) + 10
    is_allowed = np.array(allowed)
    corrupted, labels = mask(RandomMasking(rate), ids, is_allowed, seed)
    assert (corrupted[~is_allowed] == ids[~is_allowed]).all()
    assert (labels[~is_allowed] == IGNORE_INDEX).all()
    assert set(corrupted) <= {4, *ids, *VOCABULARY.ordinary}
    assert (ids == np.arange(len(allowed)) + 10).all(), "the input must not change"


@given(st.integers(0, 2**31), st.floats(0.01, 0.99))
def test_the_order_of_the_random_draws(seed, rate):
    """A change of the order would change the models of a given seed."""
    ids = np.arange(60).reshape(3, 20) + 10
    allowed = ids % 7 > 0
    rng = np.random.default_rng(seed)
    chosen = allowed & (rng.random(ids.shape) < rate)
    draw = rng.random(ids.shape)
    expected = np.where(chosen & (draw < 0.8), 4, ids)
    random = chosen & (draw >= 0.8) & (draw < 0.9)
    expected[random] = rng.choice(VOCABULARY.ordinary, int(random.sum()))
    corrupted, labels = mask(RandomMasking(rate), ids, allowed, seed)
    assert (corrupted == expected).all()
    assert (labels == np.where(chosen, ids, IGNORE_INDEX)).all()


def test_other_replacement_shares():
    ids = np.full((100, 500), 30)
    corrupted, labels = mask(get("random", 0.4, mask="0.5", random=0.5), ids, np.ones_like(ids, bool))
    chosen = labels != IGNORE_INDEX
    assert abs(chosen.mean() - 0.4) < 0.01
    assert abs((corrupted[chosen] == 4).mean() - 0.5) < 0.02
    assert abs((corrupted[chosen] == 30).mean() - 0.5 / 50) < 0.005


def test_invalid_parameters():
    with pytest.raises(UserError, match="Did you mean 'random'"):
        get("randum")
    with pytest.raises(UserError, match="Did you mean 'mask'"):
        get("random", masks=1)
    with pytest.raises(UserError, match="parameter 'mask'"):
        get("random", mask="much")
    with pytest.raises(UserError, match="their sum at most 1"):
        get("random", mask=0.9, random=0.2)
    with pytest.raises(UserError, match="finite number"):
        get("random", mask=float("nan"))
    with pytest.raises(UserError, match="between 0 and 1"):
        get("random", 1.5)
    with pytest.raises(UserError, match="parameter 'rate'"):
        get("random", "much")


def test_default_masking_has_the_same_identity_however_it_is_given():
    for given_ in (None, "random", RandomMasking(0.2)):
        assert resolve(given_, 0.2).identity() == {"name": "random", "rate": 0.2, "mask": 0.8, "random": 0.1}
    assert resolve(RandomMasking(0.3), 0.2).identity() == {"name": "random", "rate": 0.3, "mask": 0.8, "random": 0.1}
    assert resolve("random mask=1 random=0", 0.2).identity()["mask"] == 1
    assert resolve("random rate=0.3", 0.2) == RandomMasking(0.3)
