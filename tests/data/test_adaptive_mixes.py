"""Mixes that depend on the training, whatever the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.data.mix.base import MIXES, AdaptiveMix, read_mix
from tests.cases import each, installed
from tests.data.rounds import NAMES, train

LEARNED = installed(
    MIXES,
    (
        "doge",
        "doge own=squared",
        "doremi",
        "doremi clip=source",
        "velocitune",
        "bandit",
        "bandit rule=fair",
        "bandit loss=heldout",
    ),
)


@each("given", LEARNED)
def test_constant_losses_give_uniform_weights(given, tmp_path):
    mix = read_mix(given + (f" reference={tmp_path}" if "doremi" in given else ""))
    measured = {
        "gradients": lambda _: np.zeros((3, 3)),
        "gradient_norms": lambda _: np.zeros(3),
        "excess_loss": lambda _: [0.2] * 3,
        "reference_loss": lambda _: [1.8] * 3,
        "heldout_loss": lambda _: [2.0] * 3,
        "train_loss": lambda n: [2.0 if n else math.nan] * 3,
    }
    needed = {name: measured[name] for name in (*mix.reads, *(["gradient_norms"] if "gradients" in mix.reads else []))}
    np.testing.assert_allclose(train(mix, 5, **needed), 1 / 3)
    adaptive = {name for name in MIXES.names() if issubclass(MIXES.lookup(name), AdaptiveMix)}
    assert adaptive - {"agent"} == {one.split()[0] for one in LEARNED}


@each(
    ("given", "said"),
    installed(
        MIXES,
        [
            ("doge target=wikipedia", "wikipedia"),
            ("velocitune fit=1", "'fit' between 0 and 1"),
            ({"velocitune": {"wikipedia": 2}}, "wikipedia"),
            ("doge strength=0", "strength"),
            ("doge smoothing=1", "smoothing"),
            ("doremi", "needs a reference model"),
            ("bandit explore=2", "explore"),
            ("agent policy=a.py:f observe=los", "a.py"),
            ("bandit every=0", "every"),
            ("bandit objectives=random", "at least two"),
            ("bandit objectives=random,span loss=heldout", "need loss=train"),
        ],
    ),
)
def test_wrong_parameters_are_refused(given, said):
    with pytest.raises(UserError, match=said):
        read_mix(given).check(NAMES)
