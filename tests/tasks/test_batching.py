"""Properties of batches of texts of arbitrary lengths."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.models.batching import token_budget_batches
from acclimate.tasks.trainer import LengthGroupedBatches

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=300)


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(1, 20), st.integers(0, 5), st.integers(1, 50))
def test_every_item_once_an_epoch_in_full_batches(lengths, size, seed, pool):
    batches = LengthGroupedBatches(lengths, size, seed, pool)
    for number in range(2):
        epoch = batches.epoch(number)
        assert sorted(item for batch in epoch for item in batch) == list(range(len(lengths)))
        assert len(epoch) == len(batches)
        assert sorted(map(len, epoch))[1:] == [size] * (len(epoch) - 1)


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(1, 20), st.integers(0, 5))
def test_the_seed_decides_everything(lengths, size, seed):
    one, two = LengthGroupedBatches(lengths, size, seed), LengthGroupedBatches(lengths, size, seed)
    assert [one.epoch(number) for number in (1, 0)] == [two.epoch(number) for number in (0, 1)][::-1]


def test_epochs_and_seeds_differ():
    lengths = [5 + item % 40 for item in range(400)]
    batches = LengthGroupedBatches(lengths, 16, 0)
    first, second = batches.epoch(0), batches.epoch(1)
    assert first != second
    assert LengthGroupedBatches(lengths, 16, 1).epoch(0) != first


def test_small_data_is_reshuffled_in_each_epoch():
    batches = LengthGroupedBatches(list(range(48)), 16, 0)
    assert {frozenset(batch) for batch in batches.epoch(0)} != {frozenset(batch) for batch in batches.epoch(1)}


def test_less_padding_than_random_batches():
    lengths = [5 + (item * 37) % 90 for item in range(800)]

    def padded(batches):
        return sum(len(batch) * max(lengths[item] for item in batch) for batch in batches)

    in_order = [list(range(start, start + 16)) for start in range(0, 800, 16)]
    assert padded(LengthGroupedBatches(lengths, 16, 0).epoch(0)) < 0.75 * padded(in_order)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=60), st.integers(1, 100))
def test_batches_respect_the_budget_and_contain_every_row_once(rows, tokens):
    batches = token_budget_batches(rows, tokens)
    assert sorted(place for batch in batches for place in batch) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(rows[place]) for place in batch) <= tokens


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=40), st.randoms())
def test_batches_do_not_depend_on_the_order_of_the_rows(rows, chance):
    mixed = list(rows)
    chance.shuffle(mixed)
    one = [[rows[place] for place in batch] for batch in token_budget_batches(rows, 32)]
    two = [[mixed[place] for place in batch] for batch in token_budget_batches(mixed, 32)]
    assert one == two
