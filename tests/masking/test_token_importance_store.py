"""Selective masking: just the marked tokens, capped, static or not, in padded and in packed rows."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.errors import UserError
from acclimate.masking import IGNORE_INDEX
from acclimate.masking.selective import SelectiveMasking
from acclimate.masking.token_importance_store import TokenImportanceStore, hash_text, rank_important_tokens
from acclimate.masking.wrappers import RandomSameCount, StaticMasking
from acclimate.training.batches import Collator
from tests.cases import each
from tests.tiny import tiny_tokenizer
from tests.training.helpers import rows

MASK = 4
TEXTS = [np.asarray(row) for row in rows(3)]
SPECIAL = np.arange(5)


def allowed_of(ids):
    return ~np.isin(ids, SPECIAL)


@pytest.fixture(scope="module")
def flags():
    """For each text which tokens are important: about a third; none in the first."""
    chance = np.random.default_rng(0)
    return [allowed_of(ids) & (chance.random(len(ids)) < 0.35) & (number > 0) for number, ids in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def scores():
    chance = np.random.default_rng(1)
    return [chance.random(len(ids)) for ids in TEXTS]


@pytest.fixture(scope="module")
def marks(flags, scores, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marks")
    triples = zip(TEXTS, flags, scores, strict=True)
    TokenImportanceStore.write(
        folder, ((ids, rank_important_tokens(flag, score), int(allowed_of(ids).sum())) for ids, flag, score in triples)
    )
    return TokenImportanceStore.load(folder)


def masked_texts(masking, layout, seed=0):
    """Each text's corrupted ids and which tokens are to be predicted, by the content of the text."""
    collator = Collator.of(tiny_tokenizer(), masking, 120, layout)
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


def test_a_rank_is_the_place_by_falling_score():
    assert rank_important_tokens(np.array([1, 0, 1, 1], bool), np.array([0.1, 9.0, 0.3, 0.2])).tolist() == [3, 0, 1, 2]


@each("layout", ["padded", "packed"])
@each("static", [True, False])
def test_exactly_the_important_tokens_are_predicted(marks, flags, layout, static):
    masking = SelectiveMasking(marks=marks)
    found = masked_texts(StaticMasking(masking) if static else masking, layout)
    for (corrupted, chosen), flag, ids in zip(found, flags, TEXTS, strict=True):
        assert (chosen == flag).all()
        assert (corrupted[~chosen] == ids[~chosen]).all()
    assert not found[0][1].any(), "a text without important tokens is left alone"


@each("cap", [0.01, 0.15, 0.3, 1.0])
def test_a_cap_keeps_the_best_and_at_least_one(marks, flags, scores, cap):
    found = masked_texts(SelectiveMasking(marks=marks, cap=cap), "padded")
    for (_, chosen), flag, score, ids in zip(found, flags, scores, TEXTS, strict=True):
        most = max(1, int(cap * allowed_of(ids).sum()))
        best = sorted(np.flatnonzero(flag), key=lambda place: -score[place])[:most]
        assert set(np.flatnonzero(chosen)) == set(best)
    assert marks.masked(cap).sum() == sum(chosen.sum() for _, chosen in found)
    assert marks.masked(None).sum() == sum(map(np.sum, flags))


def test_static_masks_a_text_the_same_way_wherever_and_whenever_it_is_read(marks):
    masking = StaticMasking(SelectiveMasking(marks=marks), seed=3)
    one, two = masked_texts(masking, "padded", 0), masked_texts(masking, "packed", 1)
    assert all((a[0] == b[0]).all() for a, b in zip(one, two, strict=True))
    other = masked_texts(StaticMasking(SelectiveMasking(marks=marks), seed=4), "padded", 0)
    assert any((a[0] != b[0]).any() for a, b in zip(one, other, strict=True))


def test_dynamic_draws_the_fate_anew_at_each_reading(marks):
    masking = SelectiveMasking(marks=marks)
    one, two = masked_texts(masking, "padded", 0), masked_texts(masking, "padded", 1)
    assert all((a[1] == b[1]).all() for a, b in zip(one, two, strict=True))
    assert any((a[0] != b[0]).any() for a, b in zip(one, two, strict=True))


def test_fates_are_eighty_ten_ten_and_no_special_token_is_ever_drawn(marks):
    masking = SelectiveMasking(marks=marks)
    fates = np.zeros(3)
    for seed in range(150):
        for (corrupted, chosen), ids in zip(masked_texts(masking, "padded", seed), TEXTS, strict=True):
            new, old = corrupted[chosen], ids[chosen]
            fates += ((new == MASK).sum(), (new == old).sum(), ((new != MASK) & (new != old)).sum())
            assert not np.isin(new[new != MASK], SPECIAL).any()
    assert np.allclose(fates / fates.sum(), [0.8, 0.1, 0.1], atol=0.015)


@each("static", [True, False])
def test_the_control_masks_as_many_tokens_of_each_text_elsewhere(marks, flags, static):
    control = RandomSameCount.like(SelectiveMasking(marks=marks))
    found = masked_texts(StaticMasking(control, 1) if static else control, "packed")
    for (_, chosen), flag, ids in zip(found, flags, TEXTS, strict=True):
        assert chosen.sum() == flag.sum()
        assert not (chosen & ~allowed_of(ids)).any()
    assert any((chosen != flag).any() for (_, chosen), flag in zip(found, flags, strict=True))


def test_an_unknown_text_is_an_error_and_not_a_guess(marks):
    with pytest.raises(ValueError, match="never given"):
        marks.of(np.array([2, 50, 51, 3]))
    assert (marks.of(TEXTS[1].astype(np.int64)) == marks.of(TEXTS[1].astype(np.int32))).all()


def test_a_cap_out_of_range(marks):
    with pytest.raises(UserError, match="cap"):
        SelectiveMasking(marks=marks, cap=1.5)
