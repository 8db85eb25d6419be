"""Random masking: shares, and what is never touched."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acclimate.masking import RandomMasking
from acclimate.masking.random import IGNORED, Vocabulary

VOCABULARY = Vocabulary(mask_id=4, ordinary=np.arange(10, 60))


def test_shares_of_rate_and_corruption():
    ids = np.full((200, 500), 30)
    corrupted, labels = RandomMasking(0.15)(ids, np.ones_like(ids, bool), VOCABULARY, np.random.default_rng(0))
    chosen = labels != IGNORED
    assert abs(chosen.mean() - 0.15) < 0.005
    assert abs((corrupted[chosen] == 4).mean() - 0.8) < 0.02
    assert abs((corrupted[chosen] == 30).mean() - 0.1 - 0.1 / 50) < 0.02
    assert (labels[chosen] == 30).all()
    assert (corrupted[~chosen] == 30).all()


@given(st.integers(0, 2**31), st.floats(0.01, 0.99), st.lists(st.booleans(), min_size=1, max_size=40))
def test_never_touches_what_is_not_allowed(seed, rate, allowed):
    ids = np.arange(len(allowed)) + 10
    permitted = np.array(allowed)
    corrupted, labels = RandomMasking(rate)(ids, permitted, VOCABULARY, np.random.default_rng(seed))
    assert (corrupted[~permitted] == ids[~permitted]).all()
    assert (labels[~permitted] == IGNORED).all()
    assert set(corrupted) <= {4, *ids, *VOCABULARY.ordinary}
    assert (ids == np.arange(len(allowed)) + 10).all(), "the input must not change"
