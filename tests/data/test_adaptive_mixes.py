"""Mixes that depend on the training, against slow computations of the formulas of their papers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from acclimate.base.errors import UserError
from acclimate.data.mix.base import MIXES, AdaptiveMix, History, Round, ask, read_mix
from acclimate.papers.doge.mix import DoGE
from acclimate.papers.velocitune.mix import predict_loss
from acclimate.study.paths import locate_mixture
from tests.cases import each

NAMES = ("domain", "wiki", "web")
EVERY, STEPS = 10, 200
AGENT = "def act(state):\n    return {'wiki': 3, 'web': 1}\n\n\ndef fail(state):\n    raise KeyError('loss')\n"


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


@pytest.fixture
def agent_file(tmp_path):
    path = tmp_path / "policies.py"
    path.write_text(AGENT)
    return path


@pytest.fixture(scope="module")
def gradients():
    """Gradients of two halves of the sample of each source: (sources, halves, weights)."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 2, 20)) + rng.normal(size=20)


def products(gradients):
    means = gradients.mean(1)
    found = means @ means.T
    np.fill_diagonal(found, (gradients[:, 0] * gradients[:, 1]).sum(1))
    return found, np.linalg.norm(means, axis=1)


def test_under_a_time_budget_the_steps_are_estimated(gradients):
    found, norms = products(gradients)
    timed, known = (
        train(DoGE(every=EVERY), 3, steps, gradients=lambda _: found, gradient_norms=lambda _: norms)
        for steps in (0, STEPS)
    )
    np.testing.assert_allclose(timed[0], 1 / 3)  # nobody knows the steps yet
    np.testing.assert_allclose(timed[1:], known[:2])
    velocitune = read_mix(f"velocitune fit=0.3 every={EVERY}")
    assert velocitune.describe() == f"velocitune every={EVERY} fit=0.3"
    losses = {"heldout_loss": lambda number: [1 + (1 + number) ** -0.5, 2 - 0.01 * number, 1.5]}
    np.testing.assert_allclose(train(velocitune, 12, 0, **losses), train(velocitune, 12, **losses))


@each(("target", "targets"), [("", [0, 1, 2]), ("domain", [0]), ("wiki, web", [1, 2])])
def test_a_step_of_doge_is_the_formula_of_the_paper(gradients, target, targets):
    """``w <- w exp(rate / mu <g_i, sum of g_j>)``, divided by the sum."""
    rate, mu = 5e-4, 0.05
    mix = DoGE(
        target=target, own="squared", clip=0, normalize=False, lower=-1e9, upper=1e9, every=EVERY,
        strength=rate / mu * STEPS / EVERY,
    )  # fmt: skip
    found, norms = products(gradients)
    (weights,) = train(mix, 1, gradients=lambda _: found, gradient_norms=lambda _: norms)
    means = gradients.mean(1)
    raw = [math.exp(rate / mu * sum(float(means[i] @ means[j]) for j in targets)) / 3 for i in range(3)]
    np.testing.assert_allclose(weights, np.array(raw) / sum(raw), rtol=1e-10)


def test_a_step_of_doge_is_that_of_the_released_code(gradients):
    """``s_i = (sum of <g_i, g_j> - <g_i, g_i>) / mean norm`` of clipped gradients, between 0 and 5."""
    found, norms = products(gradients)
    mix = DoGE(own="omitted", clip=1.5, lower=0, every=EVERY, strength=4.0)
    (weights,) = train(mix, 1, gradients=lambda _: found, gradient_norms=lambda _: norms)
    clipped = [mean * min(1.0, 1.5 / float(np.linalg.norm(mean))) for mean in gradients.mean(1)]
    scale = sum(float(np.linalg.norm(one)) for one in clipped) / 3
    scores = [sum(float(a @ b) for j, b in enumerate(clipped) if j != i) / scale for i, a in enumerate(clipped)]
    raw = [math.exp(4.0 * EVERY / STEPS * min(5.0, max(0.0, score))) for score in scores]
    np.testing.assert_allclose(weights, np.array(raw) / sum(raw), rtol=1e-10)


def test_the_product_of_two_halves_does_not_count_noise():
    """A source of pure noise has a large gradient, but two halves of its sample have nothing in common."""
    rng = np.random.default_rng(1)
    scores = {"halves": [], "squared": []}
    for _ in range(200):
        gradients = np.stack([1 + 0.1 * rng.normal(size=(2, 50)), rng.normal(size=(2, 50)) * 3])
        for own, found in scores.items():
            found.append(DoGE(own=own, clip=0).scores(*products(gradients), [0, 1]))
    halves, squared = (np.mean(scores[own], axis=0) for own in ("halves", "squared"))
    assert abs(halves[1]) < 0.15 * halves[0]
    assert squared[1] > squared[0]


@each("clip", ["token", "source"])
def test_a_step_of_doremi_is_the_formula_of_the_paper(clip, tmp_path):
    """``w <- (1 - c) w exp(eta max(excess, 0)) / sum + c / k``."""
    mix = read_mix({"doremi": {"reference": str(tmp_path), "eta": 2, "smoothing": 0.1, "clip": clip, "every": EVERY}})
    loss, reference = np.array([[3.0, 2.0, 1.0], [2.5, 2.5, 1.0]]), np.array([2.0, 2.4, 1.5])
    excess = np.maximum(loss - reference, 0)
    given = {"excess_loss": lambda n: excess[n]}
    if clip == "source":
        given = {"heldout_loss": lambda n: loss[n], "reference_loss": lambda _: reference}
    found = train(mix, 2, **given)
    expected = [1 / 3] * 3
    for round_ in range(2):
        raw = [weight * math.exp(2 * one) for weight, one in zip(expected, excess[round_], strict=True)]
        expected = [0.9 * one / sum(raw) + 0.1 / 3 for one in raw]
        np.testing.assert_allclose(found[round_], expected, rtol=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 3), st.floats(0.2, 3), st.floats(0.1, 1.0))
def test_the_scaling_law_predicts_the_loss_at_the_end(floor, scale, power):
    tokens = np.linspace(1e4, 1e5, 8)
    found = predict_loss(tokens, floor + scale * (tokens / 1e4) ** -power, 5e5)
    assert found == pytest.approx(floor + scale * 50**-power, abs=5e-3 * scale)


def test_the_fit_is_that_of_scipy():
    rng = np.random.default_rng(0)
    tokens = np.linspace(1, 20, 30)
    losses = 1.5 + tokens**-0.5 + 0.01 * rng.normal(size=30)
    found, _ = curve_fit(lambda x, e, b, p: e + b * x**-p, tokens, losses, p0=(1, 1, 0.3), bounds=(0, 5))
    assert predict_loss(tokens, losses, 80) == pytest.approx(found[0] + found[1] * 80 ** -found[2], abs=2e-3)


def test_a_step_of_velocitune_is_the_formula_of_the_paper():
    mix = read_mix({"velocitune": {"targets": {"domain": 1.0, "wiki": 2.0, "web": 1.0}, "every": EVERY}})
    losses = np.array([[3.0, 3.0, 2.0], [2.0, 2.9, 0.9], [1.5, 1.5, 2.5]])
    found = train(mix, 3, heldout_loss=lambda number: losses[number])
    expected = [1 / 3] * 3
    for round_, now in enumerate(losses):
        way = [(1.0, 2.0, 1.0)[i] for i in range(3)]
        left = [min(1, max(0, (now[i] - way[i]) / (losses[0][i] - way[i]))) for i in range(3)]
        raw = [weight * math.exp(one) for weight, one in zip(expected, left, strict=True)]
        expected = [one / sum(raw) for one in raw]
        np.testing.assert_allclose(found[round_], expected, rtol=1e-10)


def test_velocitune_predicts_targets_and_gives_the_slow_source_more():
    """Both sources have the same losses in the fit; then the second stays behind its law, and web is forgotten."""
    mix = read_mix(f"velocitune fit=0.3 every={EVERY}")

    def losses(number):
        law = 1 + (1 + number) ** -0.5
        behind = law + 0.05 * max(0, number - 6)
        return [law, behind, 2 + 0.01 * number]

    found = train(mix, 16, heldout_loss=losses)
    np.testing.assert_allclose(found[:6], 1 / 3)  # the initial weights until 30 % of the training
    assert found[-1, 1] > 1.2 * found[-1, 0]
    assert found[-1, 2] > found[-1, 0]  # it is above its target, and its loss does not fall


def test_the_bandit_follows_the_loss_that_falls():
    fast = read_mix(f"bandit every={EVERY}")
    losses = [lambda n: 3 * 0.9**n, lambda n: 3 * 0.99**n, lambda n: 3 + 0.01 * n]

    def loss(number):
        return [math.nan] * 3 if number == 0 else [one(number) for one in losses]

    found = train(fast, 12, train_loss=loss)
    np.testing.assert_allclose(found[:2], 1 / 3)
    assert found[-1, 0] > 0.5 > found[-1, 1] > found[-1, 2] > 0.2 / 3 - 1e-9


def test_a_proposal_of_the_bandit_is_a_softmax_of_fading_rewards():
    losses = np.array([[np.nan] * 3, [4.0, 2.0, np.nan], [3.0, np.nan, 1.0], [2.0, 1.0, 0.9]])
    mix = read_mix(f"bandit eta=0.5 explore=0.1 memory=0.8 every={EVERY}")
    rewards = [[0, 0, 0], [0, 0, 0], [1 / 4, 0, 0], [1 / 3, 1 / 2, 0.1]]
    low, high = np.percentile(np.array(rewards), [20, 80])
    sums = [
        0.5
        * sum(0.8 ** (3 - n) * min(1, max(-1, 2 * (one[i] - low) / (high - low) - 1)) for n, one in enumerate(rewards))
        for i in range(3)
    ]
    raw = [math.exp(one) for one in sums]
    found = train(mix, 4, train_loss=lambda number: losses[number])[-1]
    np.testing.assert_allclose(found, [0.9 * one / sum(raw) + 0.1 / 3 for one in raw], rtol=1e-10)


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
    assert locate_mixture(study, agent_file.parent)["mix"] == {"agent": {"policy": f"{agent_file.resolve()}:act"}}


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


LEARNED = ("doge", "doge own=squared", "doremi", "doremi clip=source", "velocitune", "bandit", "bandit loss=heldout")


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
    assert adaptive == {"agent", *(one.split()[0] for one in LEARNED)}


@each(
    ("given", "said"),
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
    ],
)
def test_wrong_parameters_are_refused(given, said):
    with pytest.raises(UserError, match=said):
        read_mix(given).check(NAMES)


def test_the_identity_of_doremi_is_the_content_of_its_reference(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    mix = read_mix({"doremi": str(tmp_path)})
    first = mix.identity()
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first["reference"] != mix.identity()["reference"]


def test_a_measurement_that_is_no_number_changes_nothing():
    found = train(
        read_mix("doge every=10"), 2, gradients=lambda _: np.full((3, 3), np.nan), gradient_norms=lambda _: [1] * 3
    )
    np.testing.assert_allclose(found, 1 / 3)
