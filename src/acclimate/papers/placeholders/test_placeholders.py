"""Placeholders: the log-odds ratio as the formula says, planted words of a domain, and runs of words."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import find_accounts
from acclimate.papers.placeholders.transform import PRIOR, Placeholders, log_odds
from tests.cases import each

SHARED = "we found that much of this can be done with care and time".split()
WORDS = {"law": ["court", "judge", "appeal", "statute"], "sea": ["vessel", "harbor", "anchor", "keel"]}


def sentences(domain: str, count: int = 60) -> list[str]:
    draw = random.Random(domain)
    return [
        f"{' '.join(draw.sample(SHARED, 6))} {draw.choice(WORDS[domain])} of {draw.choice(WORDS[domain])} {number}."
        for number in range(count)
    ]


COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 500), min_size=1)


@given(COUNTS, COUNTS)
@settings(max_examples=40, deadline=None)
def test_log_odds_are_those_of_the_formula(own, others):
    found = log_odds(own, others)
    assert found.keys() == own.keys()
    n, m = sum(own.values()), sum(others.values())
    for word, (ratio, z) in found.items():
        y, x = own[word], others.get(word, 0)
        size = PRIOR * min(n, m)
        a = size * (y + x) / (n + m)
        if own.keys() | others.keys() == {word}:
            assert (ratio, z) == (0, 0)
            continue
        one, two = (y + a) / (n + size - y - a), (x + a) / (m + size - x - a)
        assert ratio == pytest.approx(math.log(one) - math.log(two), abs=1e-8)
        assert z == pytest.approx(math.log(one / two) / math.sqrt(1 / (y + a) + 1 / (x + a)), abs=1e-7)


def test_the_words_of_the_domain_are_replaced_and_no_others():
    made = transform(sentences("law"), "placeholders", general=Corpus.of(sentences("sea")))
    for before, after in zip(sentences("law"), made, strict=True):
        for word in WORDS["law"]:
            before = before.replace(word, "[DOMAIN]")
        assert after == before
    notes = find_accounts(made)[0].notes
    assert set(notes["most_common"][""]) == set(WORDS["law"]) and notes["replaced"] == 120 == notes["placeholders"]


def test_each_file_is_a_domain(tmp_path):
    for name in WORDS:
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences(name)))
    made = transform(str(tmp_path), {"placeholders": {"against": "sources", "placeholder": "<x>"}})
    assert len(list(made)) == 120 and all(text.count("<x>") == 2 for text in made)
    assert not any(word in text for text in made for words in WORDS.values() for word in words)
    common = find_accounts(made)[0].notes["most_common"]
    assert [set(words) for words in common.values()] == [set(WORDS["law"]), set(WORDS["sea"])]


@each(
    ("text", "expected"),
    [
        ("The Court of Appeal sat.", "The [D] of [D] sat."),
        ("A court-appeal, COURT  appeal and court's!", "A [D], [D]  [D] and [D]s!"),
        ("nothing here", "nothing here"),
        ("courts appealed", "courts appealed"),
        ("the ＣＯＵＲＴ", "the [D]"),
        ("court", None),
    ],
)
def test_runs_of_words_of_a_list_become_one_placeholder(text, expected, tmp_path):
    (tmp_path / "words.txt").write_text("court\nAppeal\n")
    settings = {"words": str(tmp_path / "words.txt"), "placeholder": "[D]"}
    made = transform([text, "another text"], {"placeholders": settings})
    assert list(made) == [*([] if expected is None else [expected.replace("]s", "]'s")]), "another text"]
    assert find_accounts(made)[0].notes["only_placeholders"] == (expected is None)


def test_common_words_stay_and_thresholds_count():
    texts, general = ["the the the the the the x"] * 30, Corpus.of(["a b x"] * 100)
    loose = {"ratio": 1, "z": 0, "stop_words": "none"}
    assert set(transform(texts, {"placeholders": {"ratio": 1, "z": 0}}, general=general)) == {texts[0]}
    assert set(transform(texts, {"placeholders": loose}, general=general)) == {"[DOMAIN] x"}
    assert set(transform(texts, {"placeholders": {**loose, "least": 200}}, general=general)) == {texts[0]}


@each(
    ("parameters", "message"),
    [
        ({}, "general text"),
        ({"against": "sources"}, "this has one"),
        ({"ratio": 0.5}, "at least 1"),
        ({"placeholder": " "}, "empty"),
        ({"words": "missing.txt"}, "cannot be read"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        transform(sentences("law", 5), {"placeholders": parameters})


def test_general_text_without_words_is_refused():
    with pytest.raises(UserError, match="no words to compare with"):
        transform(sentences("law", 5), "placeholders", general=Corpus.of(["..."]))
    assert Placeholders(against="sources").reads == () and Counter(Placeholders().reads) == {"general": 1}
