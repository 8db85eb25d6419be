"""The split into micro-batches has minimal cost, and typical batches have few shapes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.engine.cutting import fewest_micro_batches, split_micro_batches
from acclimate.models.batching import FEWEST_BATCHES, MINIMAL_PADDING, POLICIES, PaddingPolicy


def price(lengths, ends, limit, policy):
    """The cost of a split, computed naively; None if a micro-batch does not fit."""
    total, begin = 0, 0
    for end in ends:
        part = lengths[begin:end]
        width = max(-(-length // policy.multiple) * policy.multiple for length in part)
        rows = len(part)
        read = sum(part) + policy.padding_cost * (rows * width - sum(part))
        if rows > 1 and read > limit:
            return None
        total += read + policy.batch_overhead
        begin = end
    return total


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.integers(1, 150),
    st.sampled_from(
        [
            MINIMAL_PADDING,
            PaddingPolicy(8, 20),
            PaddingPolicy(4, 1),
            PaddingPolicy(1, 0),
            PaddingPolicy(8, 20, 0.25),
            PaddingPolicy(1, 3, 0.5),
        ]
    ),
    st.booleans(),
)
def test_no_other_split_is_cheaper(lengths, limit, policy, longest_first):
    lengths = sorted(lengths, reverse=True) if longest_first else lengths
    found = [part.stop for part in split_micro_batches(lengths, limit, policy)]
    inner = range(1, len(lengths))
    every = [[*ends, len(lengths)] for size in range(len(lengths)) for ends in combinations(inner, size)]
    prices = [price(lengths, ends, limit, policy) for ends in every]
    assert price(lengths, found, limit, policy) == min(value for value in prices if value is not None)
    possible = [len(ends) for ends, value in zip(every, prices, strict=True) if value is not None]
    assert (
        fewest_micro_batches(lengths, limit, policy)
        == min(possible)
        == len(split_micro_batches(lengths, limit, policy._replace(batch_overhead=FEWEST_BATCHES)))
    )


def lognormal(seed, count=64):
    chance = np.random.default_rng(seed)
    lengths = np.clip(np.round(chance.lognormal(np.log(64), 0.65, count)), 10, 164).astype(int)
    return sorted(lengths.tolist(), reverse=True)


def test_typical_steps_have_few_shapes_and_little_padding():
    policy = POLICIES["cpu"]
    shapes, real, read = set(), 0, 0
    for seed in range(100):
        lengths = lognormal(seed)
        for part in split_micro_batches(lengths, 1_024, policy):
            rows, width = part.stop - part.start, policy.padded_width(lengths[part.start])
            shapes.add((rows, width))
            real, read = real + sum(lengths[part]), read + rows * width
    assert real > 0.85 * read
    assert len(shapes) < 180


def test_a_large_micro_batch_ends_where_it_would_be_mostly_padding():
    lengths = lognormal(0, 256)
    parts = split_micro_batches(lengths, 65_536, POLICIES["cuda"])
    read = sum((part.stop - part.start) * lengths[part.start] for part in parts)
    assert sum(lengths) < 0.5 * len(lengths) * lengths[0], "a single one would be mostly padding"
    assert sum(lengths) > 0.65 * read
    assert len(parts) == 2
