"""Random words: they follow from the seed, and their bits show no pattern."""

import pytest
import torch

from acclimate.kernels import dropout
from acclimate.kernels.dropout import LANES, STEPS, drop_mask, random_key, random_words, to_signed

MASK = 2**64 - 1


@pytest.fixture
def pieces(monkeypatch):
    """Set how many words are made at a time."""
    yield lambda size: (monkeypatch.setattr(dropout, "CHUNK", size), dropout._counters.cache_clear())
    dropout._counters.cache_clear()


def one_word(key, place):
    """The same in the integers of Python."""
    word = (key + place * dropout.SPLITMIX_STRIDE) & MASK
    for shift, factor in ((30, dropout.SPLITMIX_FIRST), (27, dropout.SPLITMIX_SECOND)):
        word = ((word ^ (to_signed(word) >> shift)) * factor) & MASK
    return to_signed(word)


def test_words_are_the_mix_of_key_and_counter(pieces):
    pieces(8)
    for key in (0, 12, -5, 2**63 - 1, -(2**63)):
        assert random_words(21, key).tolist() == [one_word(key, place) for place in range(21)]


def test_where_the_words_are_cut_does_not_show(pieces):
    whole = random_words(1_000, 7)
    pieces(64)
    assert torch.equal(random_words(1_000, 7), whole)


@pytest.mark.parametrize("count", [0, 1, dropout.CHUNK, dropout.CHUNK + 1])
def test_any_number_of_words(count):
    assert random_words(count, 7).shape == (count,)


def test_the_seed_decides_and_draws_differ():
    torch.manual_seed(1)
    first, second = random_words(500, random_key()), random_words(500, random_key())
    torch.manual_seed(1)
    assert torch.equal(random_words(500, random_key()), first)
    assert not torch.equal(first, second)
    assert len(torch.cat([first, second]).unique()) == 1_000


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 + 5, -1, -(2**63) - 1])
def test_signed_keeps_the_lowest_bits(number):
    assert -(2**63) <= to_signed(number) < 2**63
    assert (to_signed(number) - number) % 2**64 == 0


def test_all_bits_are_even_and_go_their_own_ways():
    """Each bit is one half of the time, and none goes with another, of its word or of the next."""
    words = random_words(200_000, 4)
    bits = torch.stack([words >> place & 1 for place in range(64)]).double()
    assert (bits.mean(1) - 0.5).abs().max() < 5 * 0.5 / 200_000**0.5
    both = torch.cat([bits[:, :-1], bits[:, 1:]])
    together = torch.corrcoef(both) - torch.eye(128)
    assert together.abs().max() < 6 / 200_000**0.5


@pytest.mark.parametrize("cut", [0, 1, 3_277, 16_384, STEPS - 1, STEPS])
def test_a_mask_drops_as_often_as_it_says(cut):
    mask = drop_mask(torch.Size([1_000, 999]), cut, 6)
    assert mask.shape == (1_000, 999)
    assert set(mask.unique().tolist()) <= {0, -1}
    expected, spread = cut / STEPS, (cut * (STEPS - cut) / STEPS**2 / mask.numel()) ** 0.5
    assert (mask == 0).double().mean().item() == pytest.approx(expected, abs=5 * spread)


def test_the_mask_compares_the_fifteen_bits_of_each_lane():
    mask = drop_mask(torch.Size([4_002]), 3_277, 5)
    numbers = [word >> (16 * lane) & 0x7FFF for word in random_words(1_001, 5).tolist() for lane in range(LANES)]
    assert mask.tolist() == [-1 if number >= 3_277 else 0 for number in numbers[:4_002]]


def test_neither_neighbours_nor_draws_drop_together():
    torch.manual_seed(0)
    masks = torch.stack([drop_mask(torch.Size([400_000]), 3_277, random_key()) for _ in range(4)]).double()
    lags = [torch.corrcoef(torch.stack([masks[0, :-lag], masks[0, lag:]]))[0, 1] for lag in (1, 2, 3, 4, 8, 12, 384)]
    between = (torch.corrcoef(masks) - torch.eye(4)).flatten()
    assert torch.cat([torch.stack(lags), between]).abs().max() < 5 / 400_000**0.5
