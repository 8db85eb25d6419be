"""The claim about the winner: bounds against SciPy, error rates in simulation, the limit, and repeated reads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from acclimate.evaluation.regression import RegressionScoring
from acclimate.evaluation.scoring import SingleLabel
from acclimate.evaluation.significance import PairedPredictions
from acclimate.labs.auto.claim import LEVEL, Bound, ClaimResult, Collapses, GeneralLosses, make_claim, spend_level
from acclimate.labs.auto.race import _count_collapses
from acclimate.labs.auto.stages import _general_losses
from tests.cases import each

FRESH = {"seeds": (10, 11, 12), "used_seeds": (0, 1)}


def task(winner, base, metric="accuracy"):
    """Return predictions of a task whose answers are all 1: rows of hits (seeds, items)."""
    return PairedPredictions(np.ones(np.shape(winner)[1], int), winner, base, metric, SingleLabel())


def hits(rng, gain=0.0, seeds=3, items=200, seed_sd=0.3):
    """Return hits of winner and base model; the gain is that of the mean on the scale of a probit."""
    ease = rng.normal(0.5, 1, items)

    def side(mean, sd):
        own = rng.normal(0, 0.5, items)
        return (ease + own + mean + rng.normal(0, sd, (seeds, 1)) + rng.normal(0, 0.5, (seeds, items)) > 0).astype(int)

    return side(gain, seed_sd), side(0.0, seed_sd / 2)


def test_bound_is_that_of_the_one_sided_t_test_where_seeds_do_not_vary():
    winner, base = hits(np.random.default_rng(0), 0.3, seeds=1, items=400)
    claim = make_claim("lm", [task(winner.repeat(3, 0), base.repeat(3, 0))], n=20_000, **FRESH)
    expected = stats.ttest_rel(winner[0], base[0], alternative="greater")
    assert claim.gain.estimate == pytest.approx((winner - base).mean())
    assert claim.gain.bound == pytest.approx(expected.confidence_interval(0.96).low, abs=1e-3)
    assert claim.helps is claim.holds is bool(expected.pvalue < spend_level(1))
    assert (claim.seeds, claim.item_count, claim.reads, claim.confidence) == (3, 400, 1, 0.96)
    assert ClaimResult.from_dict(claim.to_dict()) == claim


def test_all_reads_of_the_same_items_together_spend_five_percent():
    levels = [spend_level(reads) for reads in range(1, 2000)]
    assert levels[:4] == pytest.approx([0.04, 0.005, 0.01 / 6, 0.01 / 12])
    assert 0.0499 < sum(levels) < LEVEL and min(levels) > 0


def test_repeated_reads_lower_the_bound():
    winner, base = hits(np.random.default_rng(0), 0.3, seeds=1, items=400)
    for reads in (1, 2, 5):
        claim = make_claim("lm", [task(winner.repeat(3, 0), base.repeat(3, 0))], reads=reads, n=20_000, **FRESH)
        test = stats.ttest_rel(winner[0], base[0], alternative="greater")
        assert claim.gain.bound == pytest.approx(test.confidence_interval(1 - spend_level(reads)).low, abs=2e-3)
        assert claim.confidence == 1 - spend_level(reads)


def test_the_limit_is_kept_only_if_the_upper_bound_is_below_it():
    rng = np.random.default_rng(1)
    winner, base = hits(rng, 1.5)
    losses = rng.normal(2, 0.3, 80)
    after = losses + 0.04 + rng.normal(0, 0.05, (3, 80))

    def claim(limit):
        return make_claim("lm", [task(winner, base)], general=GeneralLosses(after, losses, None, limit), **FRESH)

    found = claim(None)
    assert found.helps
    assert found.forgotten.estimate == pytest.approx((after - losses).mean())
    assert found.forgotten.bound > found.forgotten.estimate
    between = (found.forgotten.estimate + found.forgotten.bound) / 2
    assert [claim(limit).holds for limit in (None, found.forgotten.bound + 1e-6, between, 0.0)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert make_claim("lm", [task(winner, base)], **FRESH).holds  # no general text and no limit
    unknown = ClaimResult(winner="lm", gain=Bound(estimate=1, bound=1), limit=0.1, seeds=3, item_count=9, confidence=1)
    assert not unknown.holds


def test_longer_texts_weigh_more_in_what_is_forgotten():
    winner, base = hits(np.random.default_rng(1))
    losses, tokens = np.array([1.0, 2.0, 3.0]), np.array([10, 10, 80])
    after = np.tile(losses + np.array([0.0, 0.0, 1.0]), (3, 1))
    claim = make_claim("lm", [task(winner, base)], general=GeneralLosses(after, losses, tokens), **FRESH)
    assert claim.forgotten.estimate == pytest.approx(0.8)


def test_fine_tunings_of_one_adaptation_are_not_independent():
    rng = np.random.default_rng(2)
    adaptations = [hits(rng, 0.2, seeds=1) for _ in range(3)]
    winner, base = (np.concatenate([pair[side] for pair in adaptations]).repeat(2, 0) for side in (0, 1))
    seeds = tuple(range(10, 16))
    alone = make_claim("lm", [task(winner, base)], seeds=seeds, used_seeds=())
    grouped = make_claim("lm", [task(winner, base)], seeds=seeds, used_seeds=(), groups=[1, 1, 2, 2, 3, 3])
    assert grouped.gain.bound < alone.gain.bound
    assert grouped.gain.estimate == alone.gain.estimate


@each(
    ("changes", "match"),
    [
        ({"seeds": (10, 11)}, "3 seeds"),
        ({"seeds": (10, 11, 12, 13)}, "3 seeds"),
        ({"groups": [1, 1, 2]}, "3 seeds"),
        ({"used_seeds": (0, 11)}, r"has used \[11\]"),
    ],
)
def test_claims_that_would_not_hold_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        make_claim("lm", [task(*hits(np.random.default_rng(0)))], **{**FRESH, **changes})


def test_errors_of_which_lower_is_better_are_refused():
    numbers = [[1.0, 2.0, 3.0]] * 3
    with pytest.raises(ValueError, match="higher is better"):
        make_claim("lm", [PairedPredictions([1.0, 2.0, 3.5], numbers, numbers, "rmse", RegressionScoring())], **FRESH)


def rates(worlds, seed, **options):
    """Return the share of worlds without a gain in which there is a claim, and of bounds that hold with a gain."""
    rng = np.random.default_rng(seed)
    false = sum(make_claim("lm", [task(*hits(rng, **options))], n=300, **FRESH).holds for _ in range(worlds))
    return false / worlds


def test_few_claims_are_false():
    assert rates(150, 3, items=150) <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.0, 0.1, 0.3])
def test_one_claim_in_twenty_is_false(seed_sd):
    assert 0.025 <= rates(1500, 4, seed_sd=seed_sd) <= 0.065


def test_models_of_one_seed_for_several_tasks_count_as_one():
    rng = np.random.default_rng(4)
    made = [SimpleNamespace(per_text=list(rng.uniform(1, 3, 5)), per_text_masked=[2, 1, 0, 4, 1]) for _ in range(6)]
    losses, tokens = _general_losses(list(zip([0, 1, 2, 0, 1, 2], made, strict=True)))
    assert tokens.tolist() == [2, 1, 4, 1]
    expected = [
        [(first.per_text[text] + second.per_text[text]) / 2 / first.per_text_masked[text] for text in (0, 1, 3, 4)]
        for first, second in zip(made[:3], made[3:], strict=True)
    ]
    assert losses == pytest.approx(np.array(expected))
    assert _general_losses([]) is None


def test_trainings_that_collapsed_in_the_race_count_for_the_claim():
    winner, base = hits(np.random.default_rng(0), 0.6, items=400)
    plain = make_claim("lm", [task(winner, base)], **FRESH)
    found = make_claim("lm", [task(winner, base)], collapses=Collapses(6, 1, 0.3), **FRESH)
    # Of nine trainings one lost 30 points: the mean over all of them.
    assert found.gain.estimate == pytest.approx((8 * plain.gain.estimate - 0.3) / 9)
    assert found.gain.bound == pytest.approx((8 * plain.gain.bound - 0.3) / 9)
    assert (plain.collapsed, found.collapsed) == (0, 1)


def test_only_scores_far_below_the_base_model_are_collapses():
    rng = np.random.default_rng(0)
    gains = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=(3, 400))
    assert _count_collapses(gains, None).collapsed == 0
    gains[1] -= 0.2
    found = _count_collapses(gains, Collapses(4, 1, 0.1))
    assert (found.trainings, found.collapsed) == (7, 2) and found.lost == pytest.approx(0.1 - gains[1].mean())
