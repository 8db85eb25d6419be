"""A mix that is asked in each round of an artificial training."""

from __future__ import annotations

import numpy as np

from acclimate.data.mix.base import History, Round, ask

NAMES = ("domain", "wiki", "web")


EVERY, STEPS = 10, 200


def train(mix, rounds, steps=STEPS, **each_round):
    """Ask a mix in each round; return the weights: (rounds, sources). Under a time budget, ``steps`` is 0."""
    asked = []
    for number in range(rounds):
        step = number * mix.every
        values = {name: np.asarray(make(number), float) for name, make in each_round.items()}
        now = Round(step, values.pop("tokens", np.full(3, 100.0 * step)), **values)
        history = History(NAMES, np.array([100, 300, 600]), steps, step / STEPS, (*asked, now))
        asked.append(Round(**{**vars(now), "weights": ask(mix, history)}))
    return np.array([one.weights for one in asked])
