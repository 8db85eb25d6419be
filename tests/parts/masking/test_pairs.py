"""Corruptions for encoder-decoders: equal to slow references, and the text can be restored from source and target."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED, SEQ2SEQ
from acclimate.parts.masking import get
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.denoisers import MODES, Denoisers
from acclimate.parts.masking.pairs import (
    Infilling,
    SpanCorruption,
    default_corruption,
    draw_spans,
    sentence_ends,
    sentinels_of,
)
from tests.cases import each
from tests.parts.masking.kinds import tokenizer
from tests.tiny import SENTINELS, TEXTS, decoder_tokenizer
from tests.tiny import pair_tokenizer as make_tokenizer

pair_tokenizer = cache(make_tokenizer)


@cache
def vocabulary(kind="t5"):
    return make_vocabulary(pair_tokenizer(kind))


@cache
def specials(kind):
    return pair_tokenizer(kind).all_special_ids


def pair(strategy, ids, seed=0, kind="t5"):
    ids = np.asarray(ids, dtype=np.int64)
    return strategy.pair(ids, ~np.isin(ids, specials(kind)), vocabulary(kind), np.random.default_rng(seed))


def restore(source, target, sentinels):
    """Return the text from source and target, token by token."""
    spans, current = {}, None
    for token in target:
        if token in sentinels:
            current = spans.setdefault(token, [])
        elif current is not None:
            current.append(token)
    return [found for token in source for found in spans.get(token, [token])]


# The code of T5, in loops: the same draws, but marks and segments as in `random_spans_noise_mask`.


def segment(total, parts, rng):
    marked = set(rng.permutation(total - 1)[: parts - 1].tolist())
    lengths = [1]
    for item in range(total - 1):
        if item in marked:
            lengths.append(1)
        else:
            lengths[-1] += 1
    return lengths


def slow_spans(length, rate, mean, most, rng):
    if length < 2 or most == 0:
        return [bool(most)] * length
    noise = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(noise / mean), 1), noise, length - noise, most)
    kept, hidden = segment(length - noise, spans, rng), segment(noise, spans, rng)
    return [value for a, b in zip(kept, hidden, strict=True) for value in [False] * a + [True] * b]


def slow_pair(ids, chosen, sentinels):
    source, target, number = [], [], 0
    for place, token in enumerate(ids):
        if not chosen[place]:
            source.append(token)
        else:
            if place == 0 or not chosen[place - 1]:
                source.append(sentinels[number])
                target.append(sentinels[number])
                number += 1
            target.append(token)
    return source, target


@given(
    length=st.integers(0, 90),
    rate=st.floats(0.01, 0.99),
    mean=st.floats(1, 70),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_span_corruption_equals_the_slow_reference(length, rate, mean, seed):
    ids = [*np.random.default_rng(seed).integers(10, 300, length).tolist(), 2]
    made = pair(SpanCorruption(rate, mean=mean), ids, seed)
    sentinels = sentinels_of(vocabulary()).tolist()
    chosen = slow_spans(length, rate, mean, len(sentinels), np.random.default_rng(seed))
    source, target = slow_pair(ids[:-1], chosen, sentinels)
    assert made.source.tolist() == [*source, 2] and made.target.tolist() == [*target, 2]
    assert made.spelled.tolist() == [*chosen, False]
    assert restore(made.source.tolist(), made.target.tolist()[:-1], sentinels) == ids
    assert len(made.source) <= len(ids) and len(made.target) <= max(3, len(ids))


def test_the_divisions_of_a_text_are_equally_likely():
    rng = np.random.default_rng(0)
    found = {}
    for _ in range(1500):  # 2 spans of 3 tokens together among 4 others: 3 divisions of 4, and 2 of 3
        key = tuple(draw_spans(7, 3 / 7, 1.5, 20, rng).tolist())
        found[key] = found.get(key, 0) + 1
    assert len(found) == 6 and min(found.values()) > 190


def slow_shuffle(ids, ends, rng):
    sentences, current = [], []
    for place, token in enumerate(ids):
        current.append(token)
        if token in ends and not (place + 1 < len(ids) and ids[place + 1] in ends):
            sentences.append(current)
            current = []
    sentences += [current] if current else []
    rank = rng.permutation(len(sentences))
    return [
        token for number in sorted(range(len(sentences)), key=lambda one: rank[one]) for token in sentences[number]
    ]


def slow_lengths(length, strategy, rng):
    """Return the lengths of the spans of a text, among them those of 0."""
    budget, lengths, drawn = int(np.ceil(length * strategy.rate)), [], []
    while sum(drawn) < budget:
        drawn += rng.poisson(strategy.mean, 64).tolist()
    for one in drawn:
        if sum(lengths) < budget:
            lengths.append(min(one, budget - sum(lengths)))
    return lengths, length - budget


def slow_infilling(ids, ends, mask, strategy, rng):
    """Return the source of BART's infilling, in loops on the same draws."""
    ids = slow_shuffle(ids, ends, rng) if strategy.shuffle else ids
    if not ids:
        return []
    lengths, kept = slow_lengths(len(ids), strategy, rng)
    inserted = lengths.count(0)
    lengths = [one for one in lengths if one]
    while len(lengths) > kept + 1:
        last = lengths.pop()
        lengths[-1] += last
    before = sorted(rng.permutation(kept + 1)[: len(lengths)].tolist())
    source, place, passed = [], 0, 0
    for number, length in zip(before, lengths, strict=True):
        while passed < number:
            source.append(ids[place])
            place, passed = place + 1, passed + 1
        source.append(mask)
        place += length
    source += ids[place:]
    inserted = min(inserted, len(ids) - kept - len(lengths))
    places = rng.integers(0, len(source) + 1, inserted)
    for place in sorted(places.tolist(), reverse=True):
        source.insert(place, mask)
    return source


@given(
    ids=st.lists(st.integers(10, 300), max_size=60),
    rate=st.floats(0.02, 0.98),
    mean=st.floats(0.1, 20),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_infilling_equals_the_slow_reference(ids, rate, mean, shuffle, seed):
    ends = sentence_ends(vocabulary("bart"))
    body = [int(ends[token % len(ends)]) if token > 270 else token for token in ids]
    strategy = Infilling(rate, mean=mean, shuffle=shuffle)
    made = pair(strategy, [1, *body, 2], seed, "bart")
    mask = vocabulary("bart").mask_id
    source = slow_infilling(body, set(ends.tolist()), mask, strategy, np.random.default_rng(seed))
    assert made.source.tolist() == [1, *source, 2]
    assert made.target.tolist() == [1, *body, 2] and made.spelled.tolist() == [False, *[True] * len(body), False]
    assert len(made.source) <= len(body) + 2
    left = sorted(token for token in source if token != mask)  # no token was changed, and only spans are missing
    assert all(left.count(token) <= body.count(token) for token in left)
    assert len(body) - len(left) == (int(np.ceil(len(body) * rate)) if body else 0)


def test_infilling_draws_lengths_from_a_poisson_distribution():
    strategy, rng = Infilling(0.3, mean=3.0), np.random.default_rng(0)
    spans = inserted = 0
    for _ in range(300):
        chosen, empty = strategy.draw(400, rng)
        assert chosen.sum() == 120
        spans += int((np.diff(chosen.astype(int), prepend=0) == 1).sum())
        inserted += empty
    assert abs((120 * 300) / (spans + inserted) - 3) < 0.1
    assert abs(inserted / (spans + inserted) - np.exp(-3)) < 0.01


@given(text=st.text(max_size=120), seed=st.integers(0, 2**31), sequential=st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_text_can_be_restored_from_what_denoisers_make_of_it(text, seed, sequential):
    given_shares = {"regular": 0, "extreme": 0} if sequential else {}
    ids = pair_tokenizer()(text)["input_ids"]
    made = pair(get("denoisers", 0.15, **given_shares), ids, seed)
    assert len(made.source) <= len(ids) and len(made.target) <= max(3, len(ids))
    source, end = made.source.tolist(), [2]
    modes = [pair_tokenizer()(mode, add_special_tokens=False)["input_ids"] for mode in MODES]
    mode = next((one for one in modes if source[: len(one)] == one and len(ids) - 1 > 2 * len(one)), [])
    free = [one for one in sentinels_of(vocabulary()).tolist() if one not in ids]
    found = restore(source[len(mode) :], made.target.tolist()[: -len(end)], free)
    first = len(mode) if mode == modes[0] else 0
    assert found == [*ids[first : len(ids) - 1 - (len(mode) - first)], *end]
    assert ids == found or mode
    spans = [token for token in made.target.tolist()[: -len(end)] if token not in free]
    assert spans == np.asarray(ids)[made.spelled].tolist()


def test_denoisers_of_an_encoder_decoder():
    ids = np.arange(20, 120)
    sentinels = sentinels_of(vocabulary()).tolist()
    counts = {mode: 0 for mode in MODES}
    strategy = get("denoisers", 0.15, suffix=0.3)
    for seed in range(300):
        made = pair(strategy, [*ids, 2], seed)
        mode = next(one for one in MODES if pair_tokenizer().decode(made.source).startswith(one))
        counts[mode] += 1
        spans = sum(token in sentinels for token in made.source.tolist())
        if mode == "[S2S]":
            assert (
                spans == 1 and made.source[-2] == sentinels[0] and made.spelled[-2] and 25 <= made.spelled.sum() <= 31
            )
        elif mode == "[NLU]":
            assert 13 <= made.spelled.sum() <= 15 and spans in (2, 4, 5)
        else:
            assert made.spelled.sum() > 40 or spans == 1
    assert 60 < counts["[NLU]"] < 115 and 22 < counts["[S2S]"] < 68


def test_sentinels_in_a_text_are_not_used_for_it():
    sentinels = sentinels_of(vocabulary()).tolist()
    assert len(sentinels) == len(SENTINELS)
    ids = [20, 21, sentinels[0], 22, 23, sentinels[2], 24, 25, 2]
    made = pair(SpanCorruption(0.5, mean=1), ids)
    assert set(sentinels) & set(made.target.tolist()) & {sentinels[0], sentinels[2]} <= set(
        np.asarray(ids)[made.spelled]
    )
    assert restore(made.source.tolist(), made.target.tolist()[:-1], [sentinels[1], *sentinels[3:]]) == ids
    full = [20, *sentinels, 21, 2]  # none is left
    made = pair(SpanCorruption(), full)
    assert made.source.tolist() == full and made.target.tolist() == [2] and not made.spelled.any()


def test_texts_of_special_tokens_alone():
    for kind, strategy, empty in (
        ("t5", SpanCorruption(), [2]),
        ("bart", Infilling(), [1, 2]),
        ("t5", Denoisers(), [2]),
    ):
        made = pair(strategy, empty, kind=kind)
        assert made.source.tolist() == empty and len(made.target)


def test_the_default_suits_the_tokenizer():
    assert default_corruption(vocabulary()) == SpanCorruption(0.15)
    assert default_corruption(vocabulary("bart")) == Infilling(0.3)
    assert default_corruption(vocabulary("bart"), 0.5) == Infilling(0.5)
    assert get("infilling").rate == 0.3 and get("infilling", 0.2).rate == 0.2 and get("sentinels").rate == 0.15
    with pytest.raises(UserError, match="neither sentinels"):
        default_corruption(make_vocabulary(decoder_tokenizer("llama")))


@each(
    ("name", "given", "message"),
    [
        ("sentinels", {"mean": 0.5}, "at least 1"),
        ("infilling", {"mean": 0}, "above 0"),
        ("infilling", {"mask": 0.5}, "'mask' means nothing"),
        ("sentinels", {"rate": 1}, "between 0 and 1"),
    ],
)
def test_wrong_parameters_are_refused(name, given, message):
    with pytest.raises(UserError, match=message):
        get(name, **given)


def test_they_are_refused_for_masked_models():
    collator = Collator.of(tokenizer("bert"), get("infilling"), MASKED, 10**6)
    with pytest.raises(UserError, match="for encoder-decoders"):
        collator([np.array(tokenizer("bert")(TEXTS[0])["input_ids"])], np.random.default_rng(0))


def test_micro_batches_hold_source_and_target():
    rows = [np.array(pair_tokenizer()(text)["input_ids"]) for text in TEXTS]
    whole = Collator.of(pair_tokenizer(), get("sentinels"), SEQ2SEQ, 10**6)(rows, np.random.default_rng(0))
    parts = Collator.of(pair_tokenizer(), get("sentinels"), SEQ2SEQ, 60)(rows, np.random.default_rng(0))
    assert len(whole) == 1 < len(parts)

    def pairs(batches):
        return sorted(
            ids[text >= 0].tolist() for batch in batches for ids, text in zip(batch.masked, batch.text, strict=True)
        )

    assert pairs(whole) == pairs(parts)
    for batch in parts:
        target = batch.masked < 0
        assert (batch.labels[target] == ~batch.masked[target]).all() and (batch.labels[~target] < 0).all()
        assert not (target & (batch.text < 0)).any()


def test_a_corruption_that_does_not_suit_the_tokenizer_is_refused():
    for kind, name, message in (
        ("t5", "infilling", "no mask token"),
        ("bart", "sentinels", "no sentinels"),
        ("bart", "denoisers", "no sentinels"),
    ):
        with pytest.raises(UserError, match=message):
            pair(get(name), [20, 21, 22, 2], kind=kind)
