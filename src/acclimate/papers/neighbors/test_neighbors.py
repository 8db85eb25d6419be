"""Texts of the task next to their nearest neighbors: the search, its control, and the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.operations import Context
from acclimate.data.pool import count_words
from acclimate.data.select.nearest import load_embedding
from acclimate.papers.neighbors.transform import WithNeighbors
from tests.cases import each
from tests.data.select.test_nearest import LAW, SEA, sentences
from tests.data.select.test_operations import pool


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(0)
    texts = [text for pair in zip(sentences(LAW, 80, 1), sentences(SEA, 80, 2), strict=True) for text in pair]
    return pool([f"{text} {'the ' * int(rng.integers(0, 12))}".strip() for text in texts])


def nearest(documents, target, k):
    """Return the documents that are most similar to each text, by all similarities at once."""
    embed = load_embedding(None, documents, target, Context())
    similarity = embed(target) @ embed(documents[:]).T
    return [
        [
            documents[place]
            for place in np.argsort(-row, kind="stable")
            if documents[place] != text and row[place] >= 0.05
        ][:k]
        for text, row in zip(target, similarity, strict=True)
    ]


def test_each_text_is_followed_by_its_nearest_neighbors(documents):
    target = [*sentences(SEA, 6, 3), documents[1], documents[1], "zzzz"]
    context = Context(target=target)
    found = list(WithNeighbors(k=3, similarity=0.05, copies=2).apply(documents, context))
    expected = ["\n".join([text, *own]) for text, own in zip(target, nearest(documents, target, 3), strict=True)]
    assert found[::2] == found[1::2] == expected and expected[-1] == "zzzz"
    assert context.notes["without_neighbor"] == 1 and context.notes["neighbors"] == 3 * 8


def test_planted_neighbors_are_found_and_a_threshold_applies(documents):
    target = sentences(SEA, 20, 4)
    lines = [line for text in WithNeighbors(k=4).apply(documents, Context(target=target)) for line in text.split("\n")]
    assert all(line.split()[0] in SEA for line in lines) and len(lines) == 20 * 5
    alone = list(WithNeighbors(similarity=0.9999).apply(documents, Context(target=target)))
    assert alone == target


def test_the_control_has_as_many_random_neighbors_and_tokens(documents):
    target = [*sentences(SEA, 40, 5), "zzzz"]
    real, control, other = (
        list(WithNeighbors(k=4, **given).apply(documents, Context(target=target)))
        for given in ({}, {"by": "random"}, {"by": "random", "seed": 1})
    )
    assert [text.count("\n") for text in control] == [text.count("\n") for text in real]
    assert abs(sum(count_words(control)) - sum(count_words(real))) <= 2 and control != other
    drawn = [line for text in control for line in text.split("\n")[1:]]
    assert 0.3 < np.mean([line.split()[0] in LAW for line in drawn]) < 0.7
    assert all(len({*lines}) == len(lines) for lines in (text.split("\n") for text in control))


@given(
    st.lists(st.text("abc ", min_size=1, max_size=9), min_size=1, max_size=8),
    st.lists(st.text("abc ", min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from(["nearest", "random"]),
)
@settings(max_examples=30, deadline=None)
def test_every_text_comes_first_and_neighbors_fit(texts, target, k, length, by):
    try:
        found = list(WithNeighbors(k, by=by, length=length).apply(pool(texts), Context(target=target)))
    except UserError as error:
        assert "contain no words" in str(error)
        return
    assert len(found) == len(target)
    for text, own in zip(found, target, strict=True):
        neighbors = text.split("\n")[1:]
        assert text.split("\n")[0] == own and len(neighbors) <= k and set(neighbors) <= set(texts)
        if by == "nearest" and neighbors:
            assert sum(count_words([own, *neighbors])) <= length and own not in neighbors


def test_neighbors_that_do_not_fit_are_counted(documents):
    target = sentences(SEA, 10, 6)
    context = Context(target=target)
    found = list(WithNeighbors(k=4, length=40).apply(documents, context))
    assert context.notes["too_long_to_fit"] + context.notes["neighbors"] == 40
    assert max(sum(count_words([text])) for text in found) <= 40 and context.notes["too_long_to_fit"]


@each("values", [{"k": 0}, {"copies": 0}, {"length": 0}, {"similarity": 1.5}])
def test_parameters_are_checked(values):
    with pytest.raises(UserError, match=r"must be at (least|most) 1"):
        WithNeighbors(**values)
