"""A mix that is asked at all its moments, and what tests of mixes check."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.data.mix.base import History, Round, ask, read_mix

NAMES, SIZES = ("domain", "law", "news"), np.array([100.0, 300.0, 600.0])


def proposals(mix, names=NAMES, sizes=SIZES, parents=None):
    """Ask a mix at all its moments; return the weights: (moments, sources)."""
    rounds, found = [], []
    for moment in mix.moments:
        history = History(
            names, sizes, 100, moment, (*rounds, Round(round(100 * moment), sizes)),
            np.arange(len(names)) if parents is None else np.array(parents),
        )  # fmt: skip
        found.append(ask(mix, history))
        rounds.append(Round(history.step, sizes, weights=found[-1]))
    return np.array(found)


def check_weights(given, moments, weights) -> None:
    """Check at which moments a mix that a user gave has which weights."""
    mix = read_mix(given)
    mix.check(NAMES)
    assert mix.moments == pytest.approx(moments)
    np.testing.assert_allclose(proposals(mix), weights)


def check_refusal(given, message: str) -> None:
    """Check that a mix that a user gave is refused for the sources."""
    with pytest.raises(UserError, match=message):
        read_mix(given).check(NAMES)
