"""Eager attention with a custom backward, against its formula."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.kernels import attention
from acclimate.kernels.attention import RESOLUTION, drop_mask, eager_attention, random_key

SCALING = 0.37


def plain(query, key, value, bias, mask=None, factor=1.0):
    """The formula of the docstring, differentiated by autograd."""
    scores = SCALING * query @ key.transpose(2, 3)
    weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
    if mask is not None:
        weights = weights * (mask != 0) * factor
    return weights @ value


def inputs(dtype=torch.float32, keys=7):
    torch.manual_seed(0)
    # Views of (rows, tokens, heads, width), as models make them.
    make = lambda tokens: torch.randn(2, tokens, 3, 4).to(dtype).transpose(1, 2).requires_grad_()  # noqa: E731
    return make(5), make(keys), make(keys)


BIASES = {
    "none": None,
    "rows": torch.randn(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)),
    "one": torch.randn(1, 1, 5, 7, generator=torch.Generator().manual_seed(2)),
    "floor": torch.zeros(2, 1, 5, 7).index_fill_(3, torch.tensor([5, 6]), torch.finfo(torch.float32).min),
}


def gradients(context, parts):
    factor = torch.randn(context.shape, generator=torch.Generator().manual_seed(4)).to(context.dtype)
    return torch.autograd.grad((context * factor).sum(), parts)


def test_float64_stays_float64():
    parts = inputs(torch.float64)
    found, expected = eager_attention(*parts, None, SCALING), plain(*parts, None)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("threshold", [0, 9_000, RESOLUTION])
def test_values_and_gradients_are_those_of_the_formula(bias, threshold, monkeypatch):
    factor = RESOLUTION / (RESOLUTION - threshold) if threshold < RESOLUTION else 0.0
    monkeypatch.setattr(attention, "threshold_and_scale", lambda p: (threshold, factor))
    parts = inputs()
    torch.manual_seed(9)
    found = eager_attention(*parts, BIASES[bias], SCALING, 0.5)
    torch.manual_seed(9)
    mask = drop_mask(torch.Size((6, 5, 7)), threshold, random_key()).view(2, 3, 5, 7) if threshold else None
    expected = plain(*parts, BIASES[bias], mask, factor)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(gradients(found, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_bfloat16_differs_by_rounding_only():
    parts = inputs(torch.bfloat16)
    found = eager_attention(*parts, BIASES["rows"].bfloat16(), SCALING)
    exact = [part.detach().float().requires_grad_() for part in parts]
    expected = plain(*exact, BIASES["rows"].bfloat16().float())
    assert found.dtype == torch.bfloat16
    pairs = [(found, expected), *zip(gradients(found, parts), gradients(expected, exact), strict=True)]
    for mine, theirs in pairs:
        assert (mine.float() - theirs).norm() < 0.02 * theirs.norm()


def test_a_query_that_attends_to_nothing_gives_finite_numbers():
    parts = inputs()
    bias = torch.full((2, 1, 5, 7), torch.finfo(torch.float32).min)
    found = eager_attention(*parts, bias, SCALING, 0.1)
    assert all(bool(part.isfinite().all()) for part in (found, *gradients(found, parts)))


def test_only_softmax_and_dropout_mask_are_saved():
    parts, kept = inputs(), []

    def pack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        eager_attention(*parts, None, SCALING, 0.1)
    assert sorted(kept) == [(6, 5, 4), (6, 5, 7), (6, 5, 7), (6, 7, 4), (6, 7, 4)]


def test_a_second_derivative_is_refused():
    parts = inputs()
    context = eager_attention(*parts, None, SCALING)
    (slope,) = torch.autograd.grad(context.square().sum(), parts[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        slope.sum().backward()


def test_no_graph_without_gradients():
    with torch.no_grad():
        assert not eager_attention(*inputs(), None, SCALING, 0.1).requires_grad


@settings(deadline=None, max_examples=60)
@given(
    matrices=st.integers(1, 9),
    queries=st.integers(1, 6),
    keys=st.integers(1, 70),
    piece=st.sampled_from([1, 40, 300, 1 << 17]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_softmax_in_chunks(matrices, queries, keys, piece, dtype):
    scores = 5 * torch.randn(matrices, queries, keys, generator=torch.Generator().manual_seed(keys)).to(dtype)
    exact = torch.promote_types(dtype, torch.float32)
    expected = torch.softmax(scores, dim=-1, dtype=exact).to(dtype)
    with patch.object(attention, "SOFTMAX_CHUNK", piece):
        attention._softmax_(scores)
    torch.testing.assert_close(scores, expected)
