"""Metrics of generated answers against the libraries' values and slow computations."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.evaluation.answers import AnswerScoring, extract, measurable, rouge_l
from acclimate.evaluation.scoring import is_above_chance, make_scoring
from acclimate.evaluation.significance import bootstrap_intervals
from tests.cases import each


@each(("predicted", "reference", "expected"), [
    ("The cat sat on the mat.", "a cat was on the mat", 2 / 3),
    ("police killed the gunman", "police kill the gunman", 0.75),
    ("the gunman kill police", "police killed the gunman", 0.5),
    ("It's 3.5% higher, in 2024-25", "3.5 % higher in 2024", 10 / 13),
    ("", "x", 0.0),
    ("x_y z", "x y z", 1.0),
    ("b a b a c", "a b c b a", 0.6),
    ("日本語", "日本", 0.8),
])  # fmt: skip
def test_rouge_l_is_that_of_rouge_score(predicted, reference, expected):
    """Values of rouge-score 0.1.2 without stemming; the last is of characters, which it drops."""
    assert rouge_l(predicted, [reference]) == pytest.approx(expected)
    assert rouge_l(predicted, ["zzz", reference]) == pytest.approx(expected)


words = st.lists(st.sampled_from("abcd"), max_size=12)


@settings(deadline=None, max_examples=100, database=None)
@given(words, words)
def test_common_subsequences_are_those_of_a_table(first, second):
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            table[i + 1, j + 1] = table[i, j] + 1 if one == other else max(table[i, j + 1], table[i + 1, j])
    expected = 2 * table[-1, -1] / max(1, len(first) + len(second))
    assert rouge_l(" ".join(first), [" ".join(second)]) == pytest.approx(expected)


def test_chrf_is_that_of_each_answer_and_not_of_the_corpus():
    metrics = pytest.importorskip("sacrebleu.metrics")
    gold, shown = [["the cat", "a cat sat"], ["of the mat on it"]], [["the cats"], ["of mats"]]
    single = [metrics.CHRF().sentence_score(one, refs).score for (one,), refs in zip(shown, gold, strict=True)]
    scoring = AnswerScoring()
    assert scoring.score(gold, shown, "chrf") == pytest.approx(np.mean(single) / 100)
    pooled = metrics.CHRF().corpus_score([one for (one,) in shown], [["the cat", gold[1][0]]]).score
    assert abs(scoring.score(gold, shown, "chrf") - pooled / 100) > 0.01


@each(("pattern", "output", "expected"), [
    (None, " four\n", "four"),
    (r"#### (\S+)", "1 + 1\n#### 2\n#### 3", "3"),
    (r"\d+", "12 or 13 of them", "13"),
    (r"#### (\d+)?", "#### ", ""),
    ("#### .+", "no answer", ""),
])  # fmt: skip
def test_the_last_match_of_a_pattern_is_the_answer(pattern, output, expected):
    assert extract(pattern, output) == expected


def test_a_pattern_that_takes_too_long_is_named(monkeypatch):
    monkeypatch.setattr("acclimate.evaluation.answers.PATTERN_SECONDS", 0.01)
    with pytest.raises(UserError, match=r"pattern '\(a\|aa\)\+\$' takes more than 0.01 s"):
        extract("(a|aa)+$", "a" * 60 + "b")


def test_scores_of_a_function_come_with_the_answers():
    """They are kept with the predictions, so that a study reads them again; what is learned is seen in F1."""
    scoring = AnswerScoring(measured=("score", "f1"), groups=(0, 0, 1, 1))
    gold = [["red", "crimson"], ["blue"], ["green"], ["a b"]]
    shown = [["red", 0.25], ["sky", 1.0], ["green", 0.5], ["b", 0.25]]
    same = make_scoring("generation", json.loads(json.dumps(scoring.details())))
    assert same == scoring and same.score(gold, shown, "score") == 0.5
    assert same.score(gold, shown, "f1") == pytest.approx(0.75)
    low, high = bootstrap_intervals(same, gold, shown, ["score"])["score"]
    assert low == pytest.approx(0.375) and high == pytest.approx(0.625)  # of two groups
    assert same.score(gold, gold, "score") == 1
    many = [[f"item {n}"] for n in range(30)]
    assert is_above_chance(many, [[[text, 0.5] for (text,) in many]], same.learned_by("score"), AnswerScoring())
    assert set(measurable()) <= set(AnswerScoring().metrics) and AnswerScoring().learned_by("chrf") == "chrf"
    stuck = AnswerScoring().find_collapse(many, [["item 1", n / 30] for n in range(30)])
    assert stuck and stuck.answer == ["item 1"] and stuck.items == 30
