"""Selective masking of the tokens of an importance store, in padded and in packed rows."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.parts.masking.selective import SelectiveMasking
from acclimate.parts.masking.token_importance_store import TokenImportanceStore, hash_text, rank_important_tokens
from acclimate.parts.masking.wrappers import RandomSameCount, StaticMasking
from tests.adaptation.helpers import rows
from tests.cases import each
from tests.tiny import tiny_tokenizer

MASK = 4
TEXTS = [np.asarray(row) for row in rows(3)]
SPECIAL = np.arange(5)


def allowed_of(ids):
    return ~np.isin(ids, SPECIAL)


@pytest.fixture(scope="module")
def flags():
    """The important tokens of each text: about a third; none in the first text."""
    rng = np.random.default_rng(0)
    return [allowed_of(ids) & (rng.random(len(ids)) < 0.35) & (number > 0) for number, ids in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(1)
    return [rng.random(len(ids)) for ids in TEXTS]


@pytest.fixture(scope="module")
def store(flags, scores, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    triples = zip(TEXTS, flags, scores, strict=True)
    TokenImportanceStore.write(
        folder, ((ids, rank_important_tokens(flag, score), int(allowed_of(ids).sum())) for ids, flag, score in triples)
    )
    return TokenImportanceStore.load(folder)


def masked_texts(masking, layout, seed=0):
    """Return the corrupted ids of each text, and which tokens are to be predicted."""
    collator = Collator.of(tiny_tokenizer(), masking, MASKED, 120, layout)
    found = {}
    for batch in collator(TEXTS, np.random.default_rng(seed)):
        for number in range(batch.texts):
            here = batch.text == number
            labels = batch.labels[here].numpy()
            ids = batch.original[here].numpy()
            assert (labels[labels != IGNORE_INDEX] == ids[labels != IGNORE_INDEX]).all()
            found[hash_text(ids)] = batch.masked[here].numpy(), labels != IGNORE_INDEX
    assert len(found) == len(TEXTS)
    return [found[hash_text(ids)] for ids in TEXTS]


def test_ranks_follow_descending_scores():
    assert rank_important_tokens(np.array([1, 0, 1, 1], bool), np.array([0.1, 9.0, 0.3, 0.2])).tolist() == [3, 0, 1, 2]


@each("layout", ["padded", "packed"])
@each("static", [True, False])
def test_exactly_the_important_tokens_are_predicted(store, flags, layout, static):
    masking = SelectiveMasking(store=store)
    found = masked_texts(StaticMasking(masking) if static else masking, layout)
    for (corrupted, chosen), flag, ids in zip(found, flags, TEXTS, strict=True):
        assert (chosen == flag).all()
        assert (corrupted[~chosen] == ids[~chosen]).all()
    assert not found[0][1].any(), "a text without important tokens is not masked"


@each("cap", [0.01, 0.15, 0.3, 1.0])
def test_a_cap_masks_the_highest_scores_and_at_least_one_token(store, flags, scores, cap):
    found = masked_texts(SelectiveMasking(store=store, cap=cap), "padded")
    for (_, chosen), flag, score, ids in zip(found, flags, scores, TEXTS, strict=True):
        most = max(1, int(cap * allowed_of(ids).sum()))
        best = sorted(np.flatnonzero(flag), key=lambda position: -score[position])[:most]
        assert set(np.flatnonzero(chosen)) == set(best)
    assert store.masked_counts(cap).sum() == sum(chosen.sum() for _, chosen in found)
    assert store.masked_counts(None).sum() == sum(map(np.sum, flags))


def test_static_masking_of_a_text_is_always_the_same(store):
    masking = StaticMasking(SelectiveMasking(store=store), seed=3)
    one, two = masked_texts(masking, "padded", 0), masked_texts(masking, "packed", 1)
    assert all((a[0] == b[0]).all() for a, b in zip(one, two, strict=True))
    other = masked_texts(StaticMasking(SelectiveMasking(store=store), seed=4), "padded", 0)
    assert any((a[0] != b[0]).any() for a, b in zip(one, other, strict=True))


def test_without_static_masking_the_replacements_change(store):
    masking = SelectiveMasking(store=store)
    one, two = masked_texts(masking, "padded", 0), masked_texts(masking, "padded", 1)
    assert all((a[1] == b[1]).all() for a, b in zip(one, two, strict=True))
    assert any((a[0] != b[0]).any() for a, b in zip(one, two, strict=True))


@pytest.mark.slow
def test_replacement_shares_without_special_tokens(store):
    masking = SelectiveMasking(store=store)
    counts = np.zeros(3)
    for seed in range(150):
        for (corrupted, chosen), ids in zip(masked_texts(masking, "padded", seed), TEXTS, strict=True):
            new, old = corrupted[chosen], ids[chosen]
            counts += ((new == MASK).sum(), (new == old).sum(), ((new != MASK) & (new != old)).sum())
            assert not np.isin(new[new != MASK], SPECIAL).any()
    assert np.allclose(counts / counts.sum(), [0.8, 0.1, 0.1], atol=0.015)


@each("static", [True, False])
def test_the_control_masks_as_many_tokens_of_each_text(store, flags, static):
    control = RandomSameCount.matching(SelectiveMasking(store=store))
    found = masked_texts(StaticMasking(control, 1) if static else control, "packed")
    for (_, chosen), flag, ids in zip(found, flags, TEXTS, strict=True):
        assert chosen.sum() == flag.sum()
        assert not (chosen & ~allowed_of(ids)).any()
    assert any((chosen != flag).any() for (_, chosen), flag in zip(found, flags, strict=True))


def test_an_unknown_text_is_an_error(store):
    with pytest.raises(ValueError, match="never given"):
        store.lookup(np.array([2, 50, 51, 3]))
    assert (store.lookup(TEXTS[1].astype(np.int64)) == store.lookup(TEXTS[1].astype(np.int32))).all()


def test_an_invalid_cap(store):
    with pytest.raises(UserError, match="cap"):
        SelectiveMasking(store=store, cap=1.5)
