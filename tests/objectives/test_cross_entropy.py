"""The cross-entropy that is made some rows at a time, beside the one of torch."""

import pytest
import torch
from torch import nn

from acclimate.kernels import cross_entropy
from acclimate.kernels.cross_entropy import summed_cross_entropy
from tests.cases import each


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS", 4)


@each("items", [0, 1, 4, 11])
@each("more", [0, 1, 6])
@each("scale", [1.0, 200.0])
def test_value_and_gradient_are_those_of_torch(items, more, scale):
    torch.manual_seed(0)
    logits = (scale * torch.randn(items + more, 9)).requires_grad_()
    labels = torch.randint(0, 9, (items,))
    found = summed_cross_entropy(logits, labels)
    expected = nn.functional.cross_entropy(logits[:items], labels, reduction="sum")
    torch.testing.assert_close(found, expected)
    (mine,), (theirs,) = (torch.autograd.grad(0.37 * value, logits) for value in (found, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_bfloat16_logits_have_a_value_in_float32_and_a_gradient_of_their_own_kind():
    torch.manual_seed(0)
    logits = torch.randn(11, 9).bfloat16().requires_grad_()
    labels = torch.randint(0, 9, (11,))
    found = summed_cross_entropy(logits, labels)
    expected = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    (mine,), (theirs,) = (torch.autograd.grad(value, logits) for value in (found, expected))
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine, theirs, rtol=0.01, atol=1e-4)


def test_one_table_as_large_as_the_logits_is_kept():
    logits, kept = torch.randn(11, 9, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.shape) or part, lambda part: part):
        summed_cross_entropy(logits * 1.0, torch.zeros(11, dtype=torch.long))
    assert [shape for shape in kept if shape.numel() > 2 * 11] == [(11, 9)]


def test_without_gradients_there_is_none():
    with torch.no_grad():
        assert not summed_cross_entropy(torch.randn(3, 5), torch.tensor([0, 1, 2])).requires_grad
