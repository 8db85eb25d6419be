"""Decisions of a race: tests against SciPy and simulation, what is never dropped, and the shrunken gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from acclimate.base.bounds import MAX_SEED
from acclimate.evaluation.scoring import SingleLabel
from acclimate.evaluation.significance import PairedPredictions
from acclimate.labs.auto.plan import MOST_CLAIM_SEEDS
from acclimate.labs.auto.race import claim_seeds, race_seeds, search_seed
from acclimate.labs.auto.racing import LEVEL, Decision, RungResult, _variance, decide, item_scores, shrunken_gain
from tests.cases import each

BASE = "none"
FALLING, RISING = [3.0, 2.9, 2.8], [3.0, 3.5, 3.6]
"""Loss curves without a dip, and in one."""


def race(scores, always=(), decisions=1, curves=None, **options):
    results = [RungResult(name, np.atleast_2d(one), (curves or {}).get(name, ())) for name, one in scores.items()]
    return {decision.name: decision for decision in decide(results, always=always, decisions=decisions, **options)}


def draw(rng, means, seeds=2, items=100, seed_sd=0.05, item_sd=0.3, noise=0.3):
    """Return scores (entrants, seeds, items) with chance in items, in seeds of each entrant, and in both together."""
    entrants = len(means)
    return (
        np.asarray(means)[:, None, None]
        + rng.normal(0, 1, items)  # shared by all entrants, cancels
        + rng.normal(0, item_sd, (entrants, 1, items))
        + rng.normal(0, seed_sd, (entrants, seeds, 1))
        + rng.normal(0, noise, (entrants, seeds, items))
    )


def predictions(gold, predicted, metric="macro_f1"):
    return PairedPredictions(gold, predicted, None, metric, SingleLabel())


def test_item_scores_of_a_mean_are_the_scores_and_else_the_jackknife():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(3, size=30), rng.integers(3, size=(2, 30))
    assert item_scores([predictions(gold, predicted, "accuracy")]) == pytest.approx(
        (predicted == gold).astype(float), abs=1e-12
    )

    found = item_scores([predictions(gold, predicted)])

    def macro(keep, shown):
        return f1_score(gold[keep], shown[keep], average="macro", zero_division=0)

    for scores, shown in zip(found, predicted, strict=True):
        assert scores.mean() == pytest.approx(macro(np.arange(30), shown))
        without = np.array([macro(np.arange(30) != place, shown) for place in range(30)])
        jackknife = 29 / 30 * ((without - without.mean()) ** 2).sum()
        assert scores.var(ddof=1) / 30 == pytest.approx(jackknife)


def test_item_scores_of_several_tasks_have_the_mean_and_the_variance_of_their_mean():
    rng = np.random.default_rng(0)
    sizes = (20, 50, 200)
    tasks = [predictions(np.ones(size, int), rng.integers(2, size=(2, size)), "accuracy") for size in sizes]
    found = item_scores(tasks)
    assert found.shape == (2, sum(sizes))
    hits = [np.asarray(task.a) == 1 for task in tasks]
    assert found.mean(1) == pytest.approx(np.mean([one.mean(1) for one in hits], axis=0))
    expected = sum(one.var(axis=1) / one.shape[1] for one in hits) / len(sizes) ** 2
    assert found.var(axis=1) / sum(sizes) == pytest.approx(expected)
    with pytest.raises(ValueError, match="same seeds"):
        item_scores([*tasks, predictions(np.ones(9, int), np.ones((3, 9), int), "accuracy")])


def test_one_seed_and_two_entrants_are_the_paired_t_test():
    a, b = np.random.default_rng(1).normal(size=(2, 60)) + np.array([[0.3], [0.0]])
    found = race({"a": a, "b": b})
    assert found["b"].p == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert (found["a"].reason, found["a"].p, found["a"].behind) == ("leader", 1.0, 0.0)
    assert found["b"].behind == pytest.approx(a.mean() - b.mean())


@each(("seed_sd", "item_sd", "noise"), [(0.05, 0.3, 0.3), (0.0, 0.0, 0.5), (0.1, 0.1, 0.0), (0.0, 0.3, 0.0)])
def test_variance_of_a_difference_against_its_variance_over_draws(seed_sd, item_sd, noise):
    rng = np.random.default_rng(2)
    drawn = [draw(rng, [0, 0, 0, 0, 0], 3, 40, seed_sd, item_sd, noise) for _ in range(300)]
    differences = [(scores[0] - scores[1]).mean() for scores in drawn]
    estimated = np.mean([_variance(scores, 0, 1)[0] for scores in drawn])
    # The variance of 300 draws has a standard error of 8 %. The estimate counts what it cannot separate twice.
    assert 0.85 < estimated / np.var(differences) < 1.35


@each(("entrants", "seeds"), [(2, 2), (8, 2), (8, 3)])
def test_the_best_is_rarely_dropped(entrants, seeds):
    rng = np.random.default_rng(3)
    worlds, dropped = 150, 0
    for _ in range(worlds):
        scores = draw(rng, np.zeros(entrants), seeds)
        more = scores + rng.normal(0, 0.1, scores.shape)  # the same items again in the next rung
        dropped += any(
            not race({str(place): one for place, one in enumerate(rung)}, decisions=2)["0"].goes_on
            for rung in (scores, more)
        )
    assert dropped / worlds <= LEVEL + 2 * np.sqrt(LEVEL * (1 - LEVEL) / worlds)


def test_the_level_is_divided_by_entrants_and_decisions():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, 100))
    a += b.mean() - a.mean() + 0.15
    p = stats.ttest_rel(a, b, alternative="greater").pvalue
    assert p < 0.2
    others = {f"other {number}": a - rng.normal(5, 1, 100) for number in range(3)}
    found = race({"a": a, "b": b, **others})
    assert found["b"].p == pytest.approx(min(1.0, 4 * p))
    assert all(found[name].reason == "worse" for name in others)
    level = 8 * p
    assert race({"a": a, "b": b, **others}, level=level * 1.01, decisions=2)["b"].reason == "worse"
    assert race({"a": a, "b": b, **others}, level=level * 0.99, decisions=2)["b"].reason == "kept"


def test_base_and_cheapest_and_entrants_in_a_dip_are_not_dropped_by_a_test():
    rng = np.random.default_rng(6)
    best = rng.normal(size=(2, 100))
    worse = {name: best - 1 - rng.normal(0, 0.1, best.shape) for name in (BASE, "lm", "dga", "kd")}
    curves = {"dga": [FALLING, RISING], "kd": [FALLING, FALLING]}
    found = race({"best": best, **worse}, always=(BASE, "lm"), curves=curves)
    assert {name: one.reason for name, one in found.items()} == {
        "best": "leader", BASE: "always", "lm": "always", "dga": "dip", "kd": "worse",
    }  # fmt: skip
    assert [one.goes_on for one in found.values()].count(False) == 1


def test_the_budget_leaves_out_the_lowest_scores_and_those_in_a_dip_last():
    means = {"a": 5, "b": 4, "c": 3, "d": 2, BASE: 1}
    rng = np.random.default_rng(7)
    scores = {name: mean * 1e-4 + rng.normal(0, 1, (2, 50)) * 1e-3 for name, mean in means.items()}
    scores = {name: one - one.mean() + means[name] * 1e-4 for name, one in scores.items()}
    curves = {"d": [RISING]}

    def leaving(room):
        found = race(scores, always=(BASE,), curves=curves, room=room, level=0.0)
        assert all(one.reason == "budget" for one in found.values() if not one.goes_on)
        return [name for name, one in found.items() if not one.goes_on]

    assert leaving(None) == leaving(5) == []
    assert leaving(4) == ["c"]
    assert leaving(3) == ["b", "c"]
    assert leaving(2) == leaving(0) == ["b", "c", "d"]  # the leader and the base model always go on


def test_copies_of_an_entrant_are_not_dropped_for_each_other():
    rng = np.random.default_rng(8)
    scores = rng.normal(size=(2, 50))
    found = race({"one": scores, "two": scores.copy()})
    assert found["two"] == Decision("two", found["one"].score, 0.0, 1.0, "kept")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_decisions_for_any_scores(data):
    entrants, seeds, items = (data.draw(st.integers(1, most)) for most in (6, 3, 8))
    values = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(-10, 10)
    numbers = data.draw(st.lists(values, min_size=entrants * seeds * items, max_size=entrants * seeds * items))
    names = [f"entrant {number}" for number in range(entrants)]
    scores = dict(zip(names, np.reshape(numbers, (entrants, seeds, items)), strict=True))
    always = set(data.draw(st.lists(st.sampled_from(names), max_size=2)))
    room = data.draw(st.none() | st.integers(0, entrants))
    found = race(scores, always=always, decisions=data.draw(st.integers(1, 3)), room=room)
    assert set(found) == set(names)
    listed = list(found.values())
    assert [one.score for one in listed] == sorted((one.score for one in listed), reverse=True)
    assert listed[0].reason == "leader"
    protected = always | {listed[0].name}
    assert all(found[name].goes_on for name in protected)
    if room is not None:
        assert sum(one.goes_on for one in listed) <= max(room, len(protected))
    assert all(0 <= one.p <= 1 and one.behind >= 0 for one in listed)
    gains = [scores[name] for name in names]
    for winner in range(entrants):
        shrunken = shrunken_gain(gains, winner)
        ends = sorted((float(gains[winner].mean()), float(np.mean(gains))))
        assert ends[0] - 1e-9 <= shrunken <= ends[1] + 1e-9


def test_results_of_other_items_cannot_be_compared():
    with pytest.raises(ValueError, match="same seeds and items"):
        race({"a": np.zeros((2, 5)), "b": np.zeros((2, 6))})
    with pytest.raises(ValueError, match="at least one"):
        race({})


def test_shrunken_gain_is_the_moment_estimate_of_empirical_bayes():
    rng = np.random.default_rng(9)
    gains = draw(rng, [0.1, 0.3, 0.0, -0.2], 1, 200, 0.0, 0.3, 0.0)
    means = gains.mean((1, 2))
    pairs = [np.var((gains[a] - gains[b])[0], ddof=1) / 200 / 2 for a in range(4) for b in range(a)]
    kept = 1 - np.mean(pairs) / means.var(ddof=1)
    assert 0 < kept < 1
    for winner in range(4):
        assert shrunken_gain(gains, winner) == pytest.approx(means.mean() + kept * (means[winner] - means.mean()))
    assert shrunken_gain(gains[:1], 0) == means[0]  # nothing was chosen


def test_the_gain_of_the_winner_is_flattered_and_the_shrunken_gain_is_not():
    rng = np.random.default_rng(10)
    apparent, shrunken = [], []
    for _ in range(200):
        gains = draw(rng, np.zeros(8), 2, 100) - rng.normal(0, 0.02)
        winner = int(gains.mean((1, 2)).argmax())
        shared = gains.mean()  # chance that all entrants share is no effect of the choice
        apparent.append(gains[winner].mean() - shared)
        shrunken.append(shrunken_gain(gains, winner) - shared)
    assert np.mean(apparent) > 0.04
    assert 0 <= np.mean(shrunken) < 0.4 * np.mean(apparent)


@given(st.integers(0, MAX_SEED) | st.integers(MAX_SEED - 20, MAX_SEED))
def test_race_claim_and_search_share_no_seed(seed):
    seeds = [*race_seeds(seed), *claim_seeds(seed, MOST_CLAIM_SEEDS), search_seed(seed)]
    assert len(set(seeds)) == len(seeds) and all(0 <= one <= MAX_SEED for one in seeds)
