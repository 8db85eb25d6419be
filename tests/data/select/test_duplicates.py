"""Near duplicates are found as in a comparison of all pairs; filters by length and language."""

from __future__ import annotations

import functools
import os
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import select
from acclimate.base.errors import UserError
from acclimate.data import contamination
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import Context, find_accounts
from acclimate.data.pool import Documents
from acclimate.data.select import duplicates
from acclimate.data.select.duplicates import PERMUTATIONS, Duplicates, choose_rows, group_equal, sign_texts
from acclimate.data.select.filters import Length
from tests.cases import each
from tests.data.select.test_operations import pool

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@functools.cache
def ngrams(text: str) -> set[str]:
    joined = " ".join(normalize_words(text))
    return {joined[place : place + 5] for place in range(len(joined) - 4)} or ({joined} if joined else set())


def jaccard(one: str, other: str) -> float:
    first, second = ngrams(one), ngrams(other)
    return len(first & second) / len(first | second) if first | second else 0.0


def all_pairs(texts: list[str], similarity: float, source: list[int], scope: str) -> list[int]:
    """The documents that are kept, by comparing each with all that are kept before it."""
    kept: list[int] = []
    for number, text in enumerate(texts):
        others = [one for one in kept if scope == "all" or (source[one] == source[number]) == (scope == "within")]
        if not any(jaccard(texts[one], text) >= similarity - 1e-12 for one in others):
            kept.append(number)
    return kept


def edited(rng: random.Random, words: list[str], changes: int) -> str:
    words = list(words)
    for _ in range(changes):
        words[rng.randrange(len(words))] = "".join(rng.choices(LETTERS, k=6))
    return " ".join(words)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Documents of 50 words with copies of every similarity between 0.6 and 1, in random order."""
    rng = random.Random(0)
    found = []
    for _ in range(30):
        words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(50)]
        found += [edited(rng, words, rng.randint(0, 7)) for _ in range(rng.randint(1, 5))]
    rng.shuffle(found)
    return [*found, found[0].upper() + "!", "", "!!", "?!", "ab", "AB.", "ab c"]


@each(("similarity", "scope"), [(0.8, "all"), (0.9, "all"), (0.8, "within"), (0.8, "across"), (0.5, "all")])
def test_the_documents_kept_are_those_of_all_pairs(texts, similarity, scope):
    source = [number % 2 for number in range(len(texts))]
    documents = Documents.of(zip(texts, source, strict=True), ("one", "other"))
    context = Context()
    kept = list(Duplicates(similarity, scope).apply(documents, context))
    expected = [texts[place] for place in all_pairs(texts, similarity, source, scope)]
    missed = len(set(kept) - set(expected)) + len(set(expected) - set(kept))
    assert missed <= 0.01 * len(texts) and len(kept) < len(texts)
    assert context.notes["within"] + context.notes["across"] == len(texts) - len(kept)
    for pair in context.notes["pairs"]:
        assert pair["similarity"] >= similarity


@given(st.lists(st.text(alphabet="ab! ", max_size=12), max_size=12), st.sampled_from([0.3, 0.8, 1.0]))
@settings(max_examples=25, deadline=None)
def test_short_and_empty_texts_are_compared_alike(texts, similarity):
    if texts:
        kept = list(Duplicates(similarity).apply(pool(texts), Context()))
        # Sets this small agree or differ in large steps, so that MinHash proposes nearly all pairs.
        expected = [texts[place] for place in all_pairs(texts, similarity, [0] * len(texts), "all")]
        assert kept == expected


@given(st.lists(st.text(alphabet="abcé ß!日́", max_size=20), min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_a_signature_depends_on_the_text_alone(texts, cores):
    """Not on those that are signed with it, on the process, or on the pieces in which a long text is read."""
    together, alone = sign_texts(texts), np.concatenate([sign_texts([text]) for text in texts])
    assert np.array_equal(together, alone)
    empty = [not "".join(normalize_words(text)) for text in texts]
    assert empty == (together == duplicates.EMPTY).all(axis=1).tolist()
    long, found = " ".join([*texts, "some words at the end"] * 3), []
    with pytest.MonkeyPatch.context() as patch:
        for limit in (10**6, 20):
            for module in (contamination, duplicates):
                patch.setattr(module, "MAX_PIECE_CHARACTERS", limit)
            found.append(sign_texts([long]))
    assert np.array_equal(*found)


def test_any_number_of_processes_finds_the_same(texts, monkeypatch):
    found = []
    for cores, block in ((1, 512), (3, 10), (2, 1)):
        monkeypatch.setattr(duplicates, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(duplicates, "SIGNED", block)
        context = Context()
        found.append((list(Duplicates().apply(pool(texts), context)), context.notes))
    assert found[0] == found[1] == found[2]
    monkeypatch.setattr(duplicates, "sign_texts", lambda texts: os._exit(9))
    with pytest.raises(UserError, match="ended with the code 9"):
        Duplicates().apply(pool(texts), Context())


def test_rows_per_band_keep_the_probability_of_a_miss():
    for similarity in (0.3, 0.5, 0.8, 0.9, 0.95):
        rows = choose_rows(similarity)
        assert (1 - similarity**rows) ** (PERMUTATIONS // rows) <= 1e-3
    assert choose_rows(0.9) > choose_rows(0.5) and choose_rows(0.01) == 1


def test_groups_are_those_of_equal_rows():
    rng = np.random.default_rng(0)
    signatures = rng.integers(0, 3, (300, 3)).astype(np.uint32)
    groups = group_equal(signatures)
    alike = (signatures[:, None] == signatures[None]).all(axis=2)
    assert ((groups[:, None] == groups[None]) & (groups >= 0)[:, None] | np.eye(300, dtype=bool) == alike).all()
    assert ((groups < 0) == (alike.sum(axis=1) == 1)).all()


def test_many_copies_of_one_text_take_linear_time_and_memory():
    peaks = []
    for count in (100, 600):
        documents = pool(f"{'the same long boilerplate of every page ' * 3} {number}" for number in range(count))
        tracemalloc.start()
        assert len(Duplicates().apply(documents, Context())) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 500 * 1_500


def test_lengths():
    texts = ["one", "one two", "one two three", "one two three four"]
    context = Context()
    assert list(Length(2, 3).apply(pool(texts), context)) == texts[1:3]
    assert context.notes == {"too_short": 1, "too_long": 1}
    assert [account.name for account in find_accounts(select(texts, {"length": 2, "duplicates": 0.9}))] == [
        "length",
        "duplicates",
    ]


def test_languages():
    pytest.importorskip("py3langid")
    english, german = "The waiter brought us a cold soup.", "Der Kellner brachte uns eine kalte Suppe."
    (account,) = find_accounts(chosen := select([english, german, "12 34"], {"language": "en"}))
    assert list(chosen) == [english] and account.notes["languages"]["de"] == 1
    assert len(list(select([english, german], "language keep=en,de"))) == 2
    with pytest.raises(UserError, match="does not know 'xx'"):
        select([english], {"language": "xx"})


@each(
    ("by", "message"),
    [
        ("duplicates similarity=0", "above 0 and at most 1"),
        ("duplicates scope=x", "scope"),
        ("length least=5 most=3", "no document has 5 to 3 tokens"),
    ],
)
def test_mistakes_are_explained(by, message):
    with pytest.raises(UserError, match=message):
        select(["a b", "c d"], by)
