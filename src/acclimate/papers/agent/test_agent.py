"""A mix that is a function of the user."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.data.mix.base import read_mix
from acclimate.study.paths import locate_parts
from tests.cases import each
from tests.data.rounds import EVERY, NAMES, train

AGENT = "def act(state):\n    return {'wiki': 3, 'web': 1}\n\n\ndef fail(state):\n    raise KeyError('loss')\n"


@pytest.fixture
def agent_file(tmp_path):
    path = tmp_path / "policies.py"
    path.write_text(AGENT)
    return path


def test_the_agent_gets_plain_values_and_its_action_is_taken(agent_file):
    states = []

    def policy(state):
        states.append(json.loads(json.dumps(state)))
        return [1, 1, state["step"]]

    mix = read_mix({"agent": {"policy": policy, "observe": "train_loss, heldout_loss", "every": EVERY}})
    found = train(mix, 2, train_loss=lambda n: [math.nan, 1, n], heldout_loss=lambda n: [2, 1, n])
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [1 / 12, 1 / 12, 10 / 12]])
    assert states[1]["names"] == list(NAMES) and states[1]["sizes"] == [100, 300, 600]
    assert states[1]["rounds"][0]["weights"] == [0.5, 0.5, 0] and "weights" not in states[1]["rounds"][1]
    assert states[1]["rounds"][1]["train_loss"] == [None, 1, 1]
    named = read_mix(f"agent policy={agent_file}:act every={EVERY}")
    np.testing.assert_allclose(train(named, 1, train_loss=lambda _: [1, 1, 1]), [[0, 0.75, 0.25]])
    before = named.identity()
    agent_file.write_text(AGENT.replace("3", "2"))
    assert before == {**named.identity(), "policy": before["policy"]} != named.identity()
    keyed = {"agent": {"policy": f"{agent_file}:act", "key": "v2"}}
    assert read_mix(keyed).identity()["policy"] == "act v2"
    study = {"mix": {"agent": {"policy": "policies.py:act"}}}
    assert locate_parts(study, agent_file.parent)["mix"] == {"agent": {"policy": f"{agent_file.resolve()}:act"}}


@each(
    ("policy", "said"),
    [
        (lambda state: [1, 1], "returned \\[1, 1\\].*expected 3"),
        (lambda state: [1, -1, 1], "nonnegative"),
        (lambda state: None, "returned None"),
        (lambda state: {"wikipedia": 1}, "wikipedia"),
        (lambda state: 1 / 0, "failed at step 0: ZeroDivisionError"),
        (None, "needs a function"),
        ("policies.py:nothing", "no Python file|no function"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused(policy, said):
    with pytest.raises(UserError, match=said):
        train(read_mix({"agent": {"policy": policy}}), 1, train_loss=lambda _: [1, 1, 1])
