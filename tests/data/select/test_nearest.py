"""Nearest neighbors of a task: exact search, the union over its texts, and planted documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.data.operations import Context
from acclimate.data.pool import Documents
from acclimate.data.select import nearest
from acclimate.data.select.nearest import Nearest, Neighbors, Task, load_embedding, normalize_rows
from tests.data.select.test_operations import pool

SEA = "ship harbor sail captain wave anchor deck mast tide crew".split()
LAW = "court judge appeal statute verdict counsel plaintiff contract clause tort".split()


def sentences(words: list[str], count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(words, 9))} the of {seed}{number}" for number in range(count)]


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 12), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_neighbors_equal_brute_force(documents, targets, k, chunk, seed):
    rng = np.random.default_rng(seed)
    vectors, wanted = (normalize_rows(rng.normal(size=(count, 3))) for count in (documents, targets))
    first = 2**24 + 1  # fp32, in which the released code stores the numbers, cannot hold it
    found, ranks = Neighbors(wanted, k), np.arange(documents)
    for start in range(0, documents, chunk):
        found.add(vectors[start : start + chunk], first + start, ranks[start : start + chunk])
    similarity = wanted @ vectors.T
    expected = np.argsort(-similarity, axis=1)[:, :k]
    size = expected.shape[1]
    assert found.positions[:, :size].tolist() == (expected + first).tolist()
    assert (found.positions[:, size:] == -1).all()
    np.testing.assert_allclose(
        found.similarity[:, :size], np.take_along_axis(similarity, expected, axis=1), rtol=0, atol=1e-5
    )


@pytest.fixture(scope="module")
def documents() -> Documents:
    return pool([text for pair in zip(sentences(LAW, 80, 1), sentences(SEA, 80, 2), strict=True) for text in pair])


def test_the_union_of_the_neighbors_of_each_text_is_kept(documents, monkeypatch):
    target = [*sentences(SEA, 6, 3), documents[1], "unknown"]
    context = Context(target=target)
    embed = load_embedding(None, documents, target, context)
    similarity = embed(target) @ embed(documents[:]).T
    similarity[:, 1] = -1  # it equals a text of the task
    expected = {int(place) for row in similarity[:-1] for place in np.argsort(-row)[:4]}
    for size in (1 << 23, 60):  # in one piece, and in pieces of a few documents
        monkeypatch.setattr(nearest, "CHUNK_NUMBERS", size)
        kept = Nearest(k=4, similarity=0.05).apply(documents, context)
        assert list(kept) == [documents[place] for place in sorted(expected)]
        assert len(kept) < 4 * 7  # neighbors of several texts count once
    assert context.notes["equal_to_task_texts"] == 1 and context.notes["without_neighbor"] == 1


def test_planted_documents_are_found(documents):
    kept = list(Nearest(k=20).apply(documents, Context(target=sentences(SEA, 30, 4))))
    assert len(kept) > 50 and sum(text.split()[0] in SEA for text in kept) == len(kept)


def test_a_budget_takes_first_neighbors_first(documents):
    target = sentences(SEA, 5, 5)
    context = Context(target=target)
    embed = load_embedding(None, documents, target, context)
    order = np.argsort(-(embed(target) @ embed(documents[:]).T), axis=1)
    first = {int(place) for place in order[:, 0]}
    kept = Nearest(k=50, documents=len(first), order="rank").apply(documents, context)
    assert set(kept) == {documents[place] for place in first} and context.notes["first_neighbors"] == len(first)
    ranked = list(Nearest(k=3, order="rank").apply(documents, context))
    assert set(ranked[: len(first)]) == set(kept) and len(ranked) > len(first)


def test_fewer_documents_than_neighbors_and_a_threshold():
    target = sentences(SEA, 3, 6)
    for texts in (["ship sail"], ["ship sail", "court judge", "zzz"]):
        assert len(Nearest(k=50).apply(pool(texts), Context(target=target))) >= 1
    documents = pool([*sentences(SEA, 20, 7), *sentences(LAW, 20, 8)])
    similar = [
        len(Nearest(k=40, similarity=level).apply(documents, Context(target=target))) for level in (0, 0.5, 0.99)
    ]
    assert similar[0] >= similar[1] >= similar[2] == 0


def test_an_encoder_embeds_the_texts(documents):
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return np.array([[text.split()[0] in SEA, text.split()[0] in LAW] for text in texts], dtype=float)

    context = Context(target=sentences(LAW, 2, 9), load_encoder=lambda name: encode)
    kept = Nearest(k=3, encoder="some/encoder").apply(documents, context)
    assert all(text.split()[0] in LAW for text in kept) and sum(calls) == len(documents) + 2


def test_the_texts_of_the_task_are_added(documents):
    target = sentences(SEA, 2, 10)
    assert list(Task(times=2).apply(documents.take([0]), Context(target=target))) == [documents[0], *target, *target]
