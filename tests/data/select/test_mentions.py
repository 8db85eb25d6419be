"""Sentences that mention entries of a list, compared with files that were written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import select
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import find_accounts
from acclimate.data.select.mentions import EntryFinder
from tests.cases import each

GOLDEN = Path(__file__).parent / "golden"
LISTS = {"words": str(GOLDEN / "entities.txt"), "task_words": str(GOLDEN / "task.txt")}


@each("level", ["entity", "task", "integrated", "domain"])
def test_sentences_are_those_of_the_golden_files(level):
    corpus = Corpus(GOLDEN / "pool.txt", txt="block")
    found = select(corpus, {"mentions": {**LISTS, "level": level, "times": 2}})
    assert list(found) == (GOLDEN / f"expected-{level}.txt").read_text(encoding="utf-8").splitlines()


def test_the_account_names_the_entries():
    corpus = Corpus(GOLDEN / "pool.txt", txt="block")
    (account,) = find_accounts(select(corpus, {"mentions": LISTS["words"]}))
    entries = account.notes["entries"]["words"]
    assert (entries["listed"], entries["found"]) == (7, 7) and entries["most_common"]["bert"] == 2
    assert account.notes["parts_read"] == 12 and account.dropped[0] == "She liked long walks."


def test_case_number_and_unit():
    corpus = Corpus(GOLDEN / "pool.txt", txt="block")
    exact = list(select(corpus, {"mentions": {**LISTS, "ignore_case": False}}))
    assert not any("ROBERTA" in text or "Convolutional" in text for text in exact) and len(exact) == 5
    assert len(list(select(corpus, {"mentions": {**LISTS, "least": 2}}))) == 2
    whole = list(select(corpus, {"mentions": {**LISTS, "unit": "document"}}))
    assert whole == list(corpus)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), max_size=5),
    st.lists(st.sampled_from("abcd"), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_the_longest_entry_at_a_word_is_found(entries, words):
    found, place = [], 0
    while place < len(words):
        fitting = [entry for entry in entries if words[place : place + len(entry)] == entry]
        longest = max(fitting, key=len, default=None)
        found += [" ".join(longest)] if longest else []
        place += len(longest or "x")
    assert EntryFinder([" ".join(entry) for entry in entries], True).find(" ".join(words)) == found


@each(
    ("parameters", "message"),
    [
        ({}, "needs words"),
        ({"words": "missing.txt"}, "cannot be read"),
        ({"words": LISTS["words"], "level": "integrated"}, "needs task_words"),
        ({"words": LISTS["words"], "least": 0}, "at least 1"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        select(["a text"], {"mentions": parameters})
