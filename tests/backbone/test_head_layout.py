"""Heads apart and side by side, with padding and without: each value is where it belongs, and comes back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.backbone.head_layout import merge_heads, split_heads
from acclimate.backbone.passes import passes_for
from acclimate.backbone.unpadded import Unpadded

WAYS = st.booleans()
TYPES = st.sampled_from([torch.float32, torch.bfloat16])


def ways(compiled, dtype):
    return passes_for(torch.empty(0, dtype=dtype)) if compiled else None


@settings(deadline=None)
@given(WAYS, TYPES, st.tuples(*[st.integers(1, 6)] * 4), st.booleans())
def test_without_padding(compiled, dtype, sizes, side_by_side):
    rows, heads, tokens, width = sizes
    part = torch.randn(rows, tokens, heads, width).to(dtype).transpose(1, 2)
    part = part if side_by_side else part.contiguous()
    passes = ways(compiled, dtype)
    split = split_heads(part, None, passes)
    assert torch.equal(split.unflatten(0, (rows, heads)), part)
    merged = merge_heads(split, heads, None, passes)
    assert torch.equal(merged, part)


@settings(deadline=None)
@given(WAYS, TYPES, st.lists(st.integers(1, 7), min_size=2, max_size=5), st.integers(1, 4), st.integers(1, 5))
def test_with_padding(compiled, dtype, lengths, heads, width):
    tokens = max(lengths) + 1  # so that there is some
    text = torch.tensor([[row] * length + [-1] * (tokens - length) for row, length in enumerate(lengths)])
    unpadded, passes = Unpadded(text), ways(compiled, dtype)
    part = torch.randn(1, len(unpadded), heads, width).to(dtype).transpose(1, 2)
    split = split_heads(part, unpadded, passes).unflatten(0, (-1, heads))
    place = 0
    for row, length in enumerate(lengths):
        for token in range(length):
            assert torch.equal(split[row, :, token], part[0, :, place])
            place += 1
    merged = merge_heads(split.flatten(0, 1), heads, unpadded, passes)
    assert merged.shape == part.shape
    assert torch.equal(merged[0, :, :place], part[0, :, :place])


@pytest.mark.parametrize("turned", [False, True])
def test_parts_whose_values_are_not_side_by_side(each_way, turned):
    part = torch.randn(2, 3, 4, 5)
    part = part.transpose(2, 3) if turned else part[..., ::2]
    found = split_heads(part, None, passes_for(part))
    assert torch.equal(found, part.flatten(0, 1))
