"""Fast dropout: its generator, the share of values that it drops, and its gradient."""

import pytest
import torch

from acclimate.kernels import attention as kernel
from acclimate.kernels.attention import LANES, RESOLUTION, drop_mask, dropout, random_key, random_words, to_signed

MASK = 2**64 - 1


@pytest.mark.parametrize("probability", [1e-9, 0.5, 0.99999, 1 - 1e-12])
def test_every_probability_below_one_gives_finite_values(probability):
    torch.manual_seed(0)
    found = dropout(torch.ones(4096, requires_grad=True), probability)
    assert found.isfinite().all()
    assert (found != 0).float().mean() == pytest.approx(1 - probability, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_passes_where_the_value_did(dtype):
    torch.manual_seed(0)
    values = torch.ones(30, 7, dtype=dtype).t().requires_grad_()  # not contiguous
    found = dropout(values, 0.25)
    assert set(found.unique().tolist()) == {0.0, torch.tensor(4 / 3, dtype=dtype).item()}
    (slope,) = torch.autograd.grad((2 * found).sum(), values)
    torch.testing.assert_close(slope, 2 * found.detach())


def test_a_second_derivative_is_refused():
    values = torch.randn(9, requires_grad=True)
    (slope,) = torch.autograd.grad(dropout(values, 0.1).square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        slope.sum().backward()


@pytest.fixture
def chunk_size(monkeypatch):
    """Set how many random words are generated at a time."""
    yield lambda size: (monkeypatch.setattr(kernel, "CHUNK", size), kernel._counters.cache_clear())
    kernel._counters.cache_clear()


def one_word(key, place):
    """The same random word, computed with Python integers."""
    word = (key + place * kernel.SPLITMIX_STRIDE) & MASK
    for shift, factor in ((30, kernel.SPLITMIX_FIRST), (27, kernel.SPLITMIX_SECOND)):
        word = ((word ^ (to_signed(word) >> shift)) * factor) & MASK
    return to_signed(word)


def test_words_are_the_mix_of_key_and_counter(chunk_size):
    whole = random_words(1_000, 7)
    chunk_size(8)
    for key in (0, 12, -5, 2**63 - 1, -(2**63)):
        assert random_words(21, key).tolist() == [one_word(key, place) for place in range(21)]
    assert torch.equal(random_words(1_000, 7), whole)


@pytest.mark.parametrize("count", [0, 1, kernel.CHUNK, kernel.CHUNK + 1])
def test_any_number_of_words(count):
    assert random_words(count, 7).shape == (count,)


def test_words_follow_from_the_seed():
    torch.manual_seed(1)
    first, second = random_words(500, random_key()), random_words(500, random_key())
    torch.manual_seed(1)
    assert torch.equal(random_words(500, random_key()), first)
    assert len(torch.cat([first, second]).unique()) == 1_000


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 + 5, -1, -(2**63) - 1])
def test_signed_keeps_the_lowest_bits(number):
    assert -(2**63) <= to_signed(number) < 2**63
    assert (to_signed(number) - number) % 2**64 == 0


def test_bits_are_balanced_and_uncorrelated():
    """Each bit is set half of the time, and is correlated with no other bit of its word or of the next one."""
    words = random_words(200_000, 4)
    bits = torch.stack([words >> place & 1 for place in range(64)]).double()
    assert (bits.mean(1) - 0.5).abs().max() < 5 * 0.5 / 200_000**0.5
    both = torch.cat([bits[:, :-1], bits[:, 1:]])
    correlation = torch.corrcoef(both) - torch.eye(128)
    assert correlation.abs().max() < 6 / 200_000**0.5


@pytest.mark.parametrize("threshold", [0, 1, 3_277, 16_384, RESOLUTION - 1, RESOLUTION])
def test_a_mask_drops_the_expected_share(threshold):
    mask = drop_mask(torch.Size([1_000, 999]), threshold, 6)
    assert mask.shape == (1_000, 999)
    assert set(mask.unique().tolist()) <= {0, -1}
    expected = threshold / RESOLUTION
    spread = (threshold * (RESOLUTION - threshold) / RESOLUTION**2 / mask.numel()) ** 0.5
    assert (mask == 0).double().mean().item() == pytest.approx(expected, abs=5 * spread)


def test_the_mask_compares_the_fifteen_bits_of_each_lane():
    mask = drop_mask(torch.Size([4_002]), 3_277, 5)
    numbers = [word >> (16 * lane) & 0x7FFF for word in random_words(1_001, 5).tolist() for lane in range(LANES)]
    assert mask.tolist() == [-1 if number >= 3_277 else 0 for number in numbers[:4_002]]


def test_neither_neighbours_nor_masks_are_correlated():
    torch.manual_seed(0)
    masks = torch.stack([drop_mask(torch.Size([400_000]), 3_277, random_key()) for _ in range(4)]).double()
    lags = [torch.corrcoef(torch.stack([masks[0, :-lag], masks[0, lag:]]))[0, 1] for lag in (1, 2, 3, 4, 8, 12, 384)]
    between = (torch.corrcoef(masks) - torch.eye(4)).flatten()
    assert torch.cat([torch.stack(lags), between]).abs().max() < 5 / 400_000**0.5
