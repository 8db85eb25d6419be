"""Embeddings whose gradients are collected by row."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels.vocabulary import RowEmbedding, replace_embeddings


@pytest.mark.parametrize("padding", [None, 2])
def test_values_and_gradients_are_those_of_plain_embeddings(padding):
    torch.manual_seed(0)
    plain = nn.Embedding(7, 3, padding_idx=padding)
    model = nn.Sequential(copy.deepcopy(plain))
    replace_embeddings(model)
    assert type(model[0]) is RowEmbedding
    for ids in (torch.tensor([[1, 2, 2], [5, 1, 1]]), torch.tensor([[6, 2]])):  # gradients add up over batches
        factor = torch.randn(*ids.shape, 3)
        for module in (plain, model[0]):
            (module(ids) * factor).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, plain.weight.grad)


def test_a_table_that_is_also_a_decoder_gets_both_gradients():
    torch.manual_seed(0)
    plain = nn.Embedding(6, 4)
    spared = copy.deepcopy(plain)
    replace_embeddings(spared)
    ids = torch.tensor([0, 3, 3, 5])
    for module in (plain, spared):
        (torch.tanh(module(ids)) @ module.weight.t()).square().sum().backward()
    torch.testing.assert_close(spared.weight.grad, plain.weight.grad)


def test_what_is_frozen_or_read_without_gradients_gets_none():
    module = nn.Embedding(4, 2)
    replace_embeddings(module)
    with torch.no_grad():
        assert not module(torch.tensor([1])).requires_grad
    module.weight.requires_grad_(False)
    assert not module(torch.tensor([1])).requires_grad
    assert module.weight.grad is None


def test_other_kinds_of_embeddings_are_left_alone():
    class Own(nn.Embedding):
        pass

    model = nn.Sequential(Own(3, 2), nn.Embedding(3, 2, max_norm=1.0), nn.Embedding(3, 2, sparse=True))
    replace_embeddings(model)
    assert [type(module) for module in model] == [Own, nn.Embedding, nn.Embedding]


def test_a_model_that_has_moved_collects_them_as_torch_does():
    model = nn.Sequential(nn.Embedding(6, 4))
    replace_embeddings(model)
    moved = model.to("meta")
    out = moved(torch.zeros(2, 3, dtype=torch.long, device="meta"))
    assert "EmbeddingFunction" not in type(out.grad_fn).__name__
    assert (
        "EmbeddingFunction"
        in type(nn.Sequential(RowEmbedding(6, 4))(torch.zeros(2, 3, dtype=torch.long)).grad_fn).__name__
    )
