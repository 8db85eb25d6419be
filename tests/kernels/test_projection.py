"""The vocabulary projection whose gradient is collected some rows at a time."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels import vocabulary
from acclimate.kernels.mixed_precision import BF16Weights
from acclimate.kernels.vocabulary import RowProjection, replace_embeddings, replace_projections


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(vocabulary, "MIN_OUTPUTS", 11)
    monkeypatch.setattr(vocabulary, "CHUNK", 16)  # four rows of width 4


class Tied(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.layer = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 11, bias=bias)
        self.decoder.weight = self.table.weight

    def forward(self, ids):
        return self.decoder(torch.tanh(self.layer(self.table(ids))))


def loss(model, ids):
    return nn.functional.cross_entropy(model(ids).float().flatten(0, -2), ids.flatten(), reduction="sum")


def spared(model, embeddings=True):
    found = copy.deepcopy(model)
    replace_projections(found)
    if embeddings:
        replace_embeddings(found)
    assert type(found.decoder) is RowProjection
    assert type(found.layer) is nn.Linear
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("embeddings", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 2), (1, 1), (0,)])  # no token may be chosen of a short text
def test_values_and_gradients_are_those_of_a_plain_layer(bias, embeddings, shape):
    torch.manual_seed(0)
    plain = Tied(bias)
    model = spared(plain, embeddings)
    for _ in range(3):  # gradients add up over batches
        ids = torch.randint(0, 11, shape)
        losses = [loss(each, ids) for each in (plain, model)]
        torch.testing.assert_close(losses[1], losses[0])
        for each in losses:
            each.backward()
    assert model.decoder.weight is model.table.weight
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)


def test_lowered_weights_collect_in_float32():
    torch.manual_seed(0)
    model = spared(Tied())
    batches = [torch.randint(0, 11, (40,)) for _ in range(3)]
    for ids in batches:
        loss(model, ids).backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    with BF16Weights(model)():
        for ids in batches:
            loss(model, ids).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32
        distance = (parameter.grad - exact[name]).norm() / exact[name].norm()
        assert 0 < distance < 0.05, name


def test_what_is_frozen_or_read_without_gradients_gets_none():
    model = spared(Tied())
    model.table.weight.requires_grad_(False)
    loss(model, torch.tensor([1, 2])).backward()
    assert model.table.weight.grad is None
    assert model.layer.weight.grad is not None
    with torch.no_grad():
        assert not model(torch.tensor([1])).requires_grad


def test_a_layer_alone_needs_no_gradient_of_its_input():
    layer = nn.Linear(4, 12)
    replace_projections(layer)
    layer(torch.ones(2, 4)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((12, 4), 2.0))
    assert torch.equal(layer.bias.grad, torch.full((12,), 2.0))


def test_other_layers_are_left_alone():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(3, 20), nn.Linear(3, 10), nn.Linear(3, 11))
    replace_projections(model)
    assert [type(module) for module in model] == [Own, nn.Linear, RowProjection]


def test_a_model_that_has_moved_or_is_cast_on_the_way_does_as_torch_does():
    model = spared(Tied())
    assert "Projection" in type(model.decoder(torch.zeros(2, 4)).grad_fn).__name__
    with torch.autocast("cpu", torch.bfloat16):
        assert "Projection" not in type(model(torch.tensor([1])).grad_fn).__name__
    moved = model.to("meta")
    assert "Projection" not in type(moved(torch.zeros(2, dtype=torch.long, device="meta")).grad_fn).__name__
