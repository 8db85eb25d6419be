"""Metrics of question answering on handmade cases."""

from __future__ import annotations

import pytest

from acclimate.evaluation.qa import (
    exact_match,
    f1,
    normalize_bioasq,
    normalize_squad,
    qa_metrics,
    qa_scores,
    reciprocal_rank,
)
from tests.cases import each


@each(
    ("text", "expected"),
    [
        ("The  Denver\tBroncos\n", "denver broncos"),
        ("a cat, an owl and the dog!", "cat owl and dog"),
        ("Theatre of another age", "theatre of another age"),  # articles inside words are kept
        ("U.S.A.", "usa"),
        ("$1,000.50", "100050"),
        ("a-b", "ab"),  # the hyphen is removed first, so there is no article
        ("A. B.", "b"),
        ("the", ""),
        ("...", ""),
        ("", ""),
        ("Beyoncé’s", "beyoncé’s"),  # accents and typographic quotes are kept
        ("“the” end", "“ ” end"),
        ("ÉTÉ", "été"),
        ("state-of-the-art", "stateoftheart"),
        ("the a an", ""),
        ("vitamin\u00a0A", "vitamin"),
        ("x_a", "xa"),
    ],
)
def test_normalization_of_squad(text, expected):
    assert normalize_squad(text) == expected


def test_exact_match_takes_any_gold_answer():
    assert exact_match("the Denver Broncos.", ["Carolina", "Denver Broncos"]) == 1
    assert exact_match("Broncos", ["Denver Broncos"]) == 0
    assert exact_match("", ["the"]) == 1  # both are empty after normalization
    assert exact_match("", ["Denver"]) == 0


def test_handmade_f1():
    # "denver broncos team" against "denver broncos": 2 shared, precision 2/3, recall 1
    assert f1("the Denver Broncos team", ["Denver Broncos"]) == pytest.approx(0.8)
    # repeated words count: "new new york" and "new york": 2 shared of 3 and 2
    assert f1("New New York", ["New York"]) == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert f1("in 1999", ["2000", "the year 1999", "1999"]) == pytest.approx(2 / 3)
    assert f1("", ["Denver"]) == 0
    assert f1("the", ["an"]) == 0  # v1.1: no shared word, although it is an exact match
    assert f1("x", ["y"]) == 0


def test_bioasq_ignores_case_only():
    assert normalize_bioasq(" Protein\n Kinase  A ") == "protein kinase a"
    assert reciprocal_rank(["the BRCA1", "BRCA1.", "brca1"], ["BRCA1"]) == pytest.approx(1 / 3)
    assert reciprocal_rank(["a", "b", "c", "d", "e", "right"], ["right"]) == 0  # beyond the first five
    assert reciprocal_rank(["x", "TP-53"], ["p53", "tp-53"]) == 0.5
    assert reciprocal_rank([], ["p53"]) == 0


def test_all_scores_of_three_questions():
    gold = [["BRCA1"], ["p53", "TP53"], ["aspirin"]]
    ranked = [["BRCA1", "x"], ["the gene TP53", "tp53"], []]
    scores = qa_scores(gold, ranked)
    assert scores["exact_match"] == [1, 0, 0]
    assert scores["f1"] == pytest.approx([1, 2 / 3, 0])
    assert scores["strict_accuracy"] == [1, 0, 0]
    assert scores["lenient_accuracy"] == [1, 1, 0]
    assert scores["mrr"] == [1, 0.5, 0]
    assert qa_metrics(gold, ranked) == pytest.approx(
        {"f1": 5 / 9, "exact_match": 1 / 3, "strict_accuracy": 1 / 3, "lenient_accuracy": 2 / 3, "mrr": 0.5}
    )


@each(("gold", "ranked"), [([], []), ([["a"]], []), ([[]], [["a"]])])
def test_invalid_input(gold, ranked):
    with pytest.raises(ValueError, match="at least one question"):
        qa_scores(gold, ranked)
