"""Merging of isolated masks, against a direct implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.parts.masking import RandomMasking, Vocabulary, get

VOCABULARY = Vocabulary(4, np.arange(10, 60))


def merged(chosen, allowed):
    """Return the chosen positions of one text after merging."""
    before = [position for position, is_chosen in enumerate(chosen) if is_chosen]
    isolated = [position for position in before if not {position - 1, position + 1} & set(before)]
    after = set(before)
    for first, second in zip(isolated[::2], isolated[1::2], strict=False):
        for near in (second - 1, second + 1):
            if 0 <= near < len(allowed) and allowed[near]:
                after = after - {first} | {near}
                break
    return sorted(after)


@given(
    seed=st.integers(0, 2**31),
    rate=st.floats(0.05, 0.6),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    data=st.data(),
)
@settings(deadline=None)
def test_against_a_direct_implementation_and_counts_do_not_change(seed, rate, lengths, data):
    width = sum(lengths) + 2
    text = np.full((2, width), -1)
    text[0, : sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    text[1, : lengths[0]] = len(lengths)
    allowed = (text >= 0) & np.array(
        data.draw(st.lists(st.booleans(), min_size=2 * width, max_size=2 * width))
    ).reshape(text.shape)
    arguments = (np.full_like(text, 20), text, allowed, VOCABULARY)
    random = RandomMasking(rate).choose(*arguments, np.random.default_rng(seed)) >= 0
    found = get("span-merge", rate).choose(*arguments, np.random.default_rng(seed)) >= 0
    for number in range(len(lengths) + 1):
        here = text == number
        assert np.flatnonzero(found[here]).tolist() == merged(random[here], allowed[here])
        assert found[here].sum() == random[here].sum()
    assert found.sum() == random.sum()


def test_handmade_example():
    assert merged([0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 1], [1] * 12) == [4, 5, 7, 8, 11]
