"""A mix that is a function of the user."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.data.mix.base import read_mix
from acclimate.papers.agent import mix as agent
from acclimate.papers.agent.mix import LEARNED, Trajectory, learn_policy, observe, rewards_of
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
        (None, "needs one of policy"),
        ("policies.py:nothing", "no Python file|no function"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused(policy, said):
    with pytest.raises(UserError, match=said):
        train(read_mix({"agent": {"policy": policy}}), 1, train_loss=lambda _: [1, 1, 1])


def world(names, rounds, propose):
    """A training in which a source that is read loses loss, and other text than the domain is forgotten if starved."""
    others = np.array([name != "domain" for name in names])
    losses, weights = [3 + 0.2 * np.arange(len(names))], []
    for number in range(rounds):
        weights.append(propose(names, number / rounds, np.array(losses), np.array(weights).reshape(-1, len(names))))
        fall = np.where(others, 0.15, 0.5) * (losses[-1] - 2) * weights[-1]
        forgotten = 0.12 * others * np.maximum(0, 0.5 / others.sum() - weights[-1])
        losses.append(losses[-1] - fall + forgotten)
    return Trajectory(
        tuple(names), np.arange(rounds + 1) / rounds, np.array(losses), np.array([*weights, weights[-1]])
    )


def exploring(seed):
    def propose(names, progress, losses, weights):
        drawn = np.random.default_rng([seed, len(losses)]).dirichlet(np.ones(len(names)))
        return (drawn + weights[-1]) / 2 if len(weights) else drawn

    return propose


def following(policy):
    def propose(*state):
        raw = np.exp(observe(*state) @ policy)
        return raw / raw.sum()

    return propose


@each("names", [("domain", "wiki"), NAMES])
def test_a_policy_learned_from_random_trainings_gains_more_than_equal_weights_and_than_they_did(names):
    logs = [world(names, 10, exploring(seed)) for seed in range(8)]
    policy = learn_policy(logs, 0.5)

    def gain(propose, names=names):
        return rewards_of(world(names, 10, propose), 0.5).sum()

    learned = gain(following(policy))
    assert learned > gain(lambda names, *_: np.full(len(names), 1 / len(names)))
    assert learned > np.mean([rewards_of(one, 0.5).sum() for one in logs])
    assert gain(following(policy), (*names, "forum")) > gain(
        exploring(99), (*names, "forum")
    )  # another number of them
    alone = learn_policy(logs, 1.0)  # only the domain text counts
    assert (
        world(names, 10, following(alone)).weights[:, 0].mean()
        > world(names, 10, following(policy)).weights[:, 0].mean()
    )


def test_rewards_and_the_fit_equal_slow_computations(monkeypatch):
    one = world(NAMES, 3, exploring(1))
    slow = [
        sum(
            share * (now - then) / first
            for share, now, then, first in zip((0.8, 0.1, 0.1), *pair, one.losses[0], strict=True)
        )
        for pair in zip(one.losses[:-1], one.losses[1:], strict=True)
    ]
    assert rewards_of(one, 0.8) == pytest.approx(slow)
    monkeypatch.setattr(agent, "PENALTY", 0.0)
    monkeypatch.setattr(agent, "TEMPERATURE", 1e9)  # all actions count alike
    same = Trajectory(NAMES, np.arange(9) / 8, np.tile([3.0, 2.0, 2.0], (9, 1)), np.tile([0.6, 0.2, 0.2], (9, 1)))
    found = following(learn_policy([same], 0.5))(NAMES, 0.5, same.losses, same.weights[:8])
    assert found == pytest.approx([0.6, 0.2, 0.2], abs=0.01)  # without advantages it imitates


def test_trainings_explore_and_their_logs_teach(tmp_path, caplog):
    def losses(number):
        return [3 - 0.1 * number, 2.5, 2 + 0.01 * number]

    for seed in range(3):
        mix = read_mix(f"agent explore={seed} every={EVERY}")
        weights = train(mix, 12, heldout_loss=losses)
        assert weights.min() > 0 and np.ptp(weights, axis=0).min() > 0.1 and mix.reads == (LEARNED,)
        rounds = [{"step": EVERY * n, LEARNED: losses(n), "weights": w.tolist()} for n, w in enumerate(weights)]
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "mix.json").write_text(json.dumps({"sources": NAMES, "rounds": rounds}))
        if seed == 0:
            with pytest.raises(UserError, match="holds 11 logged actions"):
                read_mix(f"agent logs={tmp_path}")
    nothing = {"sources": NAMES, "rounds": [{"step": 0, "weights": [1, 0, 0]}]}
    for name, log in (("fixed", nothing), ("ragged", nothing | {"rounds": [{**rounds[0], LEARNED: [1, 2]}] * 3})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mix.json").write_text(json.dumps(log))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mix.json").write_text(json.dumps({"ledger": {}, "rounds": []}))  # of a checkpoint
    mix = read_mix(f"agent logs={tmp_path} every={EVERY}")
    assert "2 of the logs" in caplog.text
    found = train(mix, 4, heldout_loss=losses)
    assert found.sum(1) == pytest.approx(1) and found.min() > 0
    before = mix.identity()
    (tmp_path / "2" / "mix.json").write_text((tmp_path / "1" / "mix.json").read_text())
    assert mix.identity()["logs"] != before["logs"]
    for name, value in (("target", 0.7), ("observe", "heldout_loss"), ("key", "mine")):
        with pytest.raises(UserError, match=f"reads {name} only with (logs|policy); leave it out, or give"):
            read_mix(f"agent explore=3 {name}={value}")
    with pytest.raises(UserError, match="needs one of policy"):
        read_mix(f"agent logs={tmp_path} explore=1")
    with pytest.raises(UserError, match="there is no 'nowhere'"):
        read_mix("agent logs=nowhere")
    for damage in ('{"sources": ["a", "b"]}', "[1, 2", '{"sources": 3, "rounds": [1]}', "7"):
        (tmp_path / "fixed" / "mix.json").write_text(damage)
        with pytest.raises(UserError, match=r"damaged|cannot be read"):
            read_mix(f"agent logs={tmp_path}")
