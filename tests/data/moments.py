"""A mix that is asked at all its moments."""

from __future__ import annotations

import numpy as np

from acclimate.data.mix.base import History, Round, ask

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
