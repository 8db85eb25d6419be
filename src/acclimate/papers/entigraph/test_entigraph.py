"""EntiGraph: which pairs and triples are drawn, and what is asked about them."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.operations import Context
from acclimate.papers.entigraph.transform import EntiGraph, draw_groups
from tests.cases import each
from tests.data.select.test_operations import pool
from tests.data.test_answer_parsing import ODD
from tests.data.transform.recipes import DOCUMENTS, names_in, say, write


@given(
    st.lists(st.text(max_size=3), max_size=9, unique=True), st.integers(2, 3), st.integers(0, 50), st.text(max_size=3)
)
@settings(max_examples=40, deadline=None)
def test_groups_are_drawn_without_replacement(names, size, most, seed):
    drawn, every = draw_groups(names, size, most, seed), list(combinations(names, size))
    assert len(drawn) == min(most, math.comb(len(names), size)) == len(set(drawn))
    assert drawn == [group for group in every if group in set(drawn)] == draw_groups(names, size, most, seed)


def test_each_group_can_be_drawn():
    counts = dict.fromkeys(combinations("abcde", 2), 0)
    for seed in range(2000):
        for group in draw_groups("abcde", 2, 3, f"{seed}"):
            counts[group] += 1
    assert all(abs(count / 600 - 1) < 0.2 for count in counts.values())  # five standard errors


def test_texts_are_about_the_pairs_and_triples():
    context = Context()
    recipe = EntiGraph(by=write, pairs=2, triples=1, entities=4)
    made = list(recipe.apply(pool(DOCUMENTS), context))
    expected = []
    for text in DOCUMENTS:
        names = names_in(f"Document:\n{text}")[:4]
        for prompt, size, most in (("pairs", 2, 2), ("triples", 3, 1)):
            for group in draw_groups(names, size, most, f"0 {prompt} {text}"):
                listed = "\n".join(f"- {name}" for name in group)
                asked = recipe.templates[prompt].replace("{text}", text).replace("{entities}", listed)
                expected.append((say(asked), list(group), prompt))
    assert [
        (one.text, list(one.fields["entities"]), one.fields["prompt"].split("/")[1].split()[0]) for one in made
    ] == expected
    assert context.notes["calls"] == len(DOCUMENTS) + len(made) and set(context.notes["prompts"]) == {
        "entities", "pairs", "triples",
    }  # fmt: skip
    again = list(EntiGraph(by=write, pairs=2, triples=1, entities=4).apply(pool(DOCUMENTS[::-1]), Context()))
    assert {one.text for one in again} == {one.text for one in made}  # whatever the order of the documents
    others = list(EntiGraph(by=write, pairs=2, triples=1, entities=4, seed=1).apply(pool(DOCUMENTS), Context()))
    assert {one.text for one in others} != {one.text for one in made}


@given(st.lists(ODD, min_size=2, max_size=2))
@settings(max_examples=20, deadline=None)
def test_any_answer_is_handled(answers):
    by = lambda prompt: answers["Explain" in prompt]  # noqa: E731
    context = Context()
    made = list(EntiGraph(by=by, key=repr(answers), pairs=2, triples=1).apply(pool(DOCUMENTS[:1]), context))
    assert all(one.text.strip() for one in made)
    assert made or context.notes["unused"] or context.notes["empty"]


@each(
    ("given", "message"),
    [
        ({"entities": 1}, "entities is from 2 to 100, not 1"),
        ({"entities": 101}, "not 101"),
        ({"pairs": -1}, "at least 0"),
        ({"by": None}, "needs a writer"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        EntiGraph(**{"by": write, **given})
