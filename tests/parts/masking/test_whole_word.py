"""Choosing whole words until a given share of the tokens is reached."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acclimate.parts.masking.whole_word import sample_words
from acclimate.parts.masking.words import Words
from tests.cases import each


def words(*texts):
    """Return words of the given lengths for each text."""
    lengths = [length for text in texts for length in text]
    number = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    return Words(np.arange(sum(lengths)), np.concatenate([[0], np.cumsum(lengths)]).astype(int), number)


TEXTS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=9), min_size=1, max_size=4)


@given(TEXTS, st.floats(0.05, 0.95), st.integers(0, 2**31), st.data())
def test_words_are_chosen_in_order_until_the_rate_is_reached(texts, rate, seed, data):
    """All words that fit are chosen; the first that does not fit may be chosen, and none after it."""
    made = words(*texts)
    rank = np.array(data.draw(st.permutations(range(len(made)))))
    first = np.array(data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made))))
    taken = sample_words(made, rate, np.random.default_rng(seed), first, rank)
    for number, lengths in enumerate(texts):
        here = np.flatnonzero(made.text == number)
        room, full = rate * sum(lengths), False
        for word in sorted(here, key=lambda word: (not first[word], rank[word])):
            if not full and made.lengths[word] <= room + 1e-9:
                assert taken[word]
                room -= made.lengths[word]
            else:
                assert not (full and taken[word])
                full = True


@each("text", [[6], [1], [1, 5], [2, 2, 2], [1, 1, 1, 1, 7], [3, 1, 4, 1, 5, 9, 2, 6]])
def test_the_expected_number_of_tokens_is_exact_and_long_words_are_chosen(text):
    many = words(*[text] * 20_000)
    taken = sample_words(many, 0.15, np.random.default_rng(0)).reshape(20_000, len(text))
    tokens = taken @ np.array(text)
    assert abs(tokens.mean() - 0.15 * sum(text)) < 4 * tokens.std() / 20_000**0.5 + 1e-9
    assert taken.any(0).all(), "every word is chosen sometimes"
    assert (taken.mean(0) > 0.05).all()


def test_no_words():
    assert len(sample_words(words(), 0.5, np.random.default_rng(0))) == 0
