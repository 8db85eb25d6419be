"""Properties of every strategy, with every kind of tokenizer and both layouts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import IGNORE_INDEX, RandomMasking, RandomSameCount, get, lookup, names
from acclimate.parts.masking.words import Words
from acclimate.parts.masking.wrappers import MixtureMasking
from tests.cases import each
from tests.parts.masking.kinds import KINDS, SENTENCES, batches, tokenizer
from tests.parts.masking.kinds import vocabulary as of
from tests.tiny import TEXTS

NEEDS = {"lexicon-first": "lexicon", "entity-first": "entities"}
MASKS = [name for name in names() if lookup(name).masks]
"""Strategies for masked models."""
WHOLE = ["whole-word", "span", "lexicon-first", "entity-first"]
WORDS = "soup\nslow service\ncold\n"


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "words.txt"
    path.write_text(WORDS)
    return str(path)


def strategy(name, rate, listed, **more):
    return get(name, rate, **({NEEDS[name]: listed} if name in NEEDS else {}), **more)


def runs(chosen):
    """Return the lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize("name", MASKS)
@each("layout", ["padded", "packed"])
@each("kind", KINDS)
@given(seed=st.integers(0, 2**31), rate=st.floats(0.02, 0.9))
@settings(max_examples=4, deadline=None)
def test_labels_are_the_original_ids_and_other_tokens_do_not_change(listed, name, kind, layout, seed, rate):
    masking = strategy(name, rate, listed)
    special = tokenizer(kind).all_special_ids
    made = batches(masking, kind, layout, seed=seed)
    for batch in made:
        original, masked, labels, text = (
            value.numpy() for value in (batch.original, batch.masked, batch.labels, batch.text)
        )
        chosen = labels != IGNORE_INDEX
        assert (labels[chosen] == original[chosen]).all()
        assert (masked[~chosen] == original[~chosen]).all()
        assert not (chosen & (text < 0)).any()
        assert not (chosen & np.isin(original, special)).any()
        assert not np.isin(masked[chosen], [one for one in special if one != tokenizer(kind).mask_token_id]).any()
    for batch, again in zip(made, batches(masking, kind, layout, seed=seed), strict=True):
        assert batch.masked.equal(again.masked)
        assert batch.labels.equal(again.labels)


@pytest.mark.parametrize("name", MASKS)
@each("kind", KINDS)
def test_the_rate_is_reached(listed, name, kind):
    """The texts include some of a single word, short or long."""
    for rate in (0.15, 0.4):
        masking = strategy(name, rate, listed)
        rate = (3 * rate + 0.25 + 3 * 0.5) / 7 if name == "denoisers" else rate
        made = batches(masking, kind, copies=200, tokens=2000)
        chosen = sum(int((batch.labels >= 0).sum()) for batch in made)
        special = tokenizer(kind).all_special_ids
        free = sum(
            int(((batch.text >= 0).numpy() & ~np.isin(batch.original.numpy(), special)).sum()) for batch in made
        )
        assert abs(chosen / free - rate) < 0.02 * rate + 0.004


@pytest.mark.parametrize("name", WHOLE)
@each("kind", KINDS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_words_are_chosen_whole_and_replaced_alike(listed, name, kind, seed):
    masking = strategy(name, 0.3, listed, mask=0.5, random=0.0)
    vocabulary = of(kind)
    for batch in batches(masking, kind, seed=seed):
        original, text, labels = batch.original.numpy(), batch.text.numpy(), batch.labels.numpy().ravel()
        allowed = (text >= 0) & ~np.isin(original, tokenizer(kind).all_special_ids)
        words = Words.of(original, text, allowed, vocabulary.subwords)
        hidden = batch.masked.numpy().ravel() == vocabulary.mask_id
        for start, stop in zip(words.starts, words.starts[1:], strict=False):
            positions = words.positions[start:stop]
            assert len(set((labels[positions] >= 0).tolist())) == 1
            assert len(set(hidden[positions].tolist())) == 1


def test_tokens_of_a_word_can_be_replaced_independently():
    one, each = (
        batches(get("whole-word", 0.5, replacement=replacement, mask=0.5, random=0), copies=300, texts=["unseen"])
        for replacement in ("word", "token")
    )
    hidden = [
        np.concatenate([(batch.masked == 4)[batch.labels >= 0].numpy().reshape(-1, 6).sum(1) for batch in made])
        for made in (one, each)
    ]
    assert set(hidden[0]) == {0, 6}
    assert set(hidden[1]) >= {1, 2, 3, 4, 5}


@each("name", [name for name in MASKS if name != "random-same-count"])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_the_control_masks_as_many_tokens_of_each_text(listed, name, seed):
    """The control first samples the masks of the strategy, so for the same seed it counts the same masks."""
    masking = strategy(name, 0.3, listed)
    control = RandomSameCount.matching(masking)
    for batch, other in zip(
        batches(masking, seed=seed, tokens=10**6), batches(control, seed=seed, tokens=10**6), strict=True
    ):
        assert batch.original.equal(other.original)
        for number in range(batch.texts):
            here = batch.text == number
            assert (batch.labels[here] >= 0).sum() == (other.labels[here] >= 0).sum()


def test_the_control_chooses_any_token_and_has_the_same_replacement_shares(listed):
    masking = strategy("entity-first", 0.3, listed, fill=False, mask=0.6, random=0.0)
    control = get("random-same-count", 0.3, of="entity-first", entities=listed, fill=False, mask=0.6, random=0.0)
    assert control == RandomSameCount.matching(masking)
    assert control.identity()["of"]["name"] == "entity-first"
    found, random = (batches(one, copies=300, texts=["cold soup, the waiter was kind"]) for one in (masking, control))
    words = [
        Counter(id_ for batch in made for id_ in batch.labels[batch.labels >= 0].tolist()) for made in (found, random)
    ]
    assert len(words[0]) == 2 and len(words[1]) == 7
    assert max(words[1].values()) < 1.6 * min(words[1].values())
    shares = [
        sum(int((batch.masked[batch.labels >= 0] == 4).sum()) for batch in made)
        / sum(int((batch.labels >= 0).sum()) for batch in made)
        for made in (found, random)
    ]
    assert abs(shares[0] - 0.6) < 0.08 and abs(shares[1] - 0.6) < 0.08


def test_the_control_of_any_callable():
    def first(ids, text, allowed, vocabulary, rng):
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, 1] = ids[:, 1]
        return ids, labels

    made = batches(RandomSameCount.matching(first), layout="padded", texts=TEXTS, copies=20)
    for batch in made:
        assert ((batch.labels >= 0).sum(1) == 1).all()
    assert {int((batch.labels[row] >= 0).int().argmax()) for batch in made for row in range(len(batch.labels))} > {
        1,
        2,
    }


def test_mean_lengths_of_runs(listed):
    texts = [" ".join(SENTENCES[:6])]
    means = {}
    for name in ("random", "span-merge", "whole-word", "span"):
        made = batches(strategy(name, 0.15, listed), layout="padded", texts=texts, copies=300)
        means[name] = np.concatenate([runs(row >= 0) for batch in made for row in batch.labels.numpy()]).mean()
    assert means["random"] < means["span-merge"] < means["span"]
    assert means["random"] < means["whole-word"]


def test_the_collator_uses_the_first_draws_for_random_masking():
    rows = [np.array(tokenizer("bert")(text)["input_ids"]) for text in SENTENCES[:8]]
    (batch,) = Collator.of(tokenizer("bert"), RandomMasking(0.3), MASKED, 10**6)(rows, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    allowed = (batch.text >= 0).numpy() & ~np.isin(batch.original.numpy(), tokenizer("bert").all_special_ids)
    assert ((batch.labels >= 0).numpy() == (allowed & (rng.random(allowed.shape) < 0.3))).all()


def test_a_mixture_draws_one_strategy_for_each_text(tmp_path):
    for name, word in (("a", "soup"), ("b", "wine")):
        (tmp_path / name).write_text(word)
    parts = [
        (weight, get("entity-first", 0.9, entities=str(tmp_path / name), fill=False))
        for weight, name in ((1, "a"), (3, "b"))
    ]
    made = batches(MixtureMasking(of=tuple(parts)), texts=["the soup and the wine"], copies=400)
    words = Counter()
    for batch in made:
        for number in range(batch.texts):
            found = batch.labels[batch.text == number]
            words[tuple(tokenizer("bert").convert_ids_to_tokens(found[found >= 0]))] += 1
    assert set(words) == {("soup",), ("wine",)} and abs(words["soup",] / 400 - 0.25) < 0.07


def test_a_mixture_by_name_has_the_parameters_of_its_strategies(listed):
    given = {
        "of": "random=0.5, span=2,lexicon-first=1e0",
        "lexicon": listed,
        "span.p": "0.5",
        "span.rate": 0.4,
        "mask": 0.6,
    }
    made = get("mixture", 0.3, **given)
    expected = [
        (0.5, get("random", 0.3, mask=0.6)),
        (2, get("span", 0.4, p=0.5, mask=0.6)),
        (1, get("lexicon-first", 0.3, lexicon=listed, mask=0.6)),
    ]
    assert list(made.of) == expected and (made.mask, made.random) == (0.6, 0.1)
    assert get("mixture", 0.3, **{**given, "of": {"random": 0.5, "span": 2, "lexicon-first": 1}}) == made
    assert made.identity()["of"][2] == [1, expected[2][1].identity()]


@each(
    ("given", "message"),
    [
        ({"of": "randm=1"}, "Did you mean 'random'"),
        ({"of": "random"}, "'random' needs a weight, as in random=0.5"),
        ({"of": "random=0"}, "weights above 0, not 'random=0'"),
        ({"of": "random=nan"}, "weights above 0"),
        ({"of": {}}, "'of' needs strategies"),
        ({"of": "random=1,random=2"}, "'random' is duplicated"),
        ({"of": "mixture=1"}, "cannot be part of a mixture"),
        ({"of": ""}, "needs strategies with weights"),
        ({"of": "random=1", "p": 0.2}, "none of random has a parameter 'p'"),
        ({"of": "random=1", "random.rate": "half"}, "'random.rate' must be a number"),
        ({"of": "span=1", "span.q": 0.2}, "'q'"),
        ({"of": "span=1", "span.mask": 0.2}, "has a parameter 'span.mask'"),
    ],
)
def test_a_mixture_with_mistakes(given, message):
    with pytest.raises(UserError, match=message):
        get("mixture", **given)
