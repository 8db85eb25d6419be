"""Prevalence-corrected scores and review budgets: against a replicated population, scikit-learn, and real folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from acclimate.base.errors import UserError
from acclimate.evaluation.review import RankedItems, ReviewScoring, measure_review, resample_classes, review_measures
from acclimate.evaluation.significance import paired_bootstrap
from acclimate.labs.inspection.review import inspect_review, read_predictions
from tests.cases import each

BUDGETS = (0.05, 0.2, 0.5, 1.0)


def measure_all(items: RankedItems, prevalence: float, budgets=BUDGETS, weights=None) -> dict:
    return {name: measure_review(items, prevalence, name, weights) for name in review_measures(budgets)}


def draw_items(seed: int, count: int = 60, levels: int = 1000) -> RankedItems:
    rng = np.random.default_rng(seed)
    truth = rng.random(count) < 0.4
    truth[:2] = True, False
    scores = np.round(rng.normal(truth * 1.0, 1), 3) if levels > 10 else rng.integers(levels, size=count).astype(float)
    return RankedItems(scores, truth, scores > np.median(scores))


@each(("seed", "negatives"), [(0, 3), (1, 10), (2, 1)])
def test_equals_a_population_with_more_negatives(seed, negatives):
    """Each negative item is repeated, so that the label becomes rarer; the scores are those of that population."""
    items = draw_items(seed)
    times = np.where(items.is_positive, 1, negatives)
    truth, shown, scores = (np.repeat(side, times) for side in (items.is_positive, items.is_shown, items.scores))
    found = measure_all(items, float(truth.mean()))
    precision, recall, f1, _ = precision_recall_fscore_support(truth, shown, average="binary")
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx([precision, recall, f1])
    assert found["average_precision"] == pytest.approx(average_precision_score(truth, scores))
    order = np.argsort(-scores, kind="stable")
    reviewed = np.arange(len(order) + 1)
    hits = np.append(0, np.cumsum(truth[order]))
    ends = np.append(0, np.append(np.flatnonzero(np.diff(scores[order])) + 1, len(order)))  # ties are drawn at random
    for budget in BUDGETS:
        expected = np.interp(budget * len(order), reviewed[ends], hits[ends]) / truth.sum()
        assert found[f"found at {budget:g}"] == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.001, 0.999), st.integers(1, 6))
def test_measures_are_shares_and_more_reviews_find_more(seed, prevalence, levels):
    found = measure_all(draw_items(seed, 20, levels), prevalence)
    assert all(-1e-12 <= value <= 1 + 1e-12 for value in found.values())
    curve = [found[f"found at {budget:g}"] for budget in BUDGETS]
    assert curve == sorted(curve) and curve[-1] == pytest.approx(1)


def test_a_review_at_random_finds_its_share():
    items = RankedItems(np.zeros(10), np.arange(10) < 4, np.zeros(10, dtype=bool))
    found = measure_all(items, 0.01, [0.3])
    assert found["found at 0.3"] == pytest.approx(0.3) and found["average_precision"] == pytest.approx(0.01)
    assert found["precision"] == found["f1"] == 0


def test_resamples_keep_the_size_of_each_class():
    truth = np.arange(9) < 2
    drawn = np.concatenate([*resample_classes(truth, 50, 0)])
    assert all(weights[truth].sum() == 2 and weights[~truth].sum() == 7 for weights in drawn)
    assert len({tuple(weights) for weights in drawn}) > 10


def test_resamples_keep_groups_whole():
    truth, groups = np.arange(12) % 4 == 0, np.arange(12) // 4
    drawn = np.concatenate([*resample_classes(truth, 50, 0, groups.tolist())])
    assert len(drawn) == 50 and all(len(set(weights[groups == 1])) == 1 and weights.sum() == 12 for weights in drawn)
    rare = np.arange(12) < 1
    assert all(
        weights[rare].sum() > 0 for weights in np.concatenate([*resample_classes(rare, 50, 0, groups.tolist())])
    )


@each("measure", review_measures(BUDGETS))
def test_weights_are_repeated_items(measure):
    items, times = draw_items(4, levels=5), np.random.default_rng(0).integers(1, 4, size=60)
    repeated = RankedItems(*(np.repeat(side, times) for side in (items.scores, items.is_positive, items.is_shown)))
    found = measure_review(items, 0.1, measure, np.stack([times, np.ones(60)]))
    assert found == pytest.approx([measure_review(one, 0.1, measure) for one in (repeated, items)])


def test_a_scoring_gives_paired_intervals():
    base, good = draw_items(0, 200), draw_items(0, 200)
    good = RankedItems(good.scores + 2 * good.is_positive, good.is_positive, good.is_shown)
    scoring = ReviewScoring(0.02, BUDGETS)
    pairs = [np.stack([items.is_shown, items.scores], 1).tolist() for items in (good, base)]
    found = paired_bootstrap(
        base.is_positive.tolist(), *([pair] for pair in pairs), "found at 0.05", 200, scoring=scoring
    )
    expected = [measure_review(items, 0.02, "found at 0.05") for items in (good, base)]
    assert found.difference == pytest.approx(expected[0] - expected[1]) and found.low > 0


def save_result(folder, scores: np.ndarray, truth: np.ndarray):
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"labels": ["fine", "hate"]}))
    lines = [
        {
            "gold": ("fine", "hate")[one],
            "predicted": ("fine", "hate")[int(score > 0.5)],
            "probabilities": {"fine": 1 - score, "hate": score},
        }
        for one, score in zip(truth.astype(int), scores.tolist(), strict=True)
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_better_ranking_is_shown(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.arange(200) < 60
    base = save_result(tmp_path / "base", rng.random(200), truth)
    good = save_result(tmp_path / "good", np.clip(0.2 + 0.5 * truth + 0.2 * rng.random(200), 0, 1), truth)
    found = inspect_review({"base": base, "good": good}, "hate", 0.01, budgets=0.05, resamples=100)
    rows = {(row["result"], row["measure"]): row for row in found["rows"]}
    assert rows["good", "found at 0.05"]["value"] == pytest.approx(1)
    assert rows["good", "found at 0.05"]["verdict"] == "helped" and rows["base", "recall"]["verdict"] is None
    assert rows["base", "precision"]["low"] < 0.01 < rows["base", "precision"]["high"] < 0.05
    assert found["share"] == 0.3 and "corrected to 1.000%" in repr(found)
    assert read_predictions(base, "hate").is_positive.sum() == 60


@each(
    ("positive", "second", "message"),
    [
        ("haet", None, "Did you mean 'hate'"),
        ("hate", "flipped", "same test items"),
        ("hate", "empty", "no predictions.*empty/seed-3"),
    ],
)
def test_mistakes_are_explained(tmp_path, positive, second, message):
    truth = np.arange(20) < 5
    folders = [save_result(tmp_path / "one", np.linspace(0, 1, 20), truth)]
    if second == "flipped":
        folders.append(save_result(tmp_path / "flipped", np.linspace(0, 1, 20), ~truth))
    elif second:
        (tmp_path / "empty" / "seed-3").mkdir(parents=True)
        folders.append(tmp_path / "empty")
    with pytest.raises(UserError, match=message):
        inspect_review(folders, positive, 0.01)
