"""Weights in bfloat16 for a step."""

import pytest
import torch
from torch import nn

from acclimate.kernels.mixed_precision import CHUNK, BF16Weights, _add_in_fp32
from acclimate.kernels.vocabulary import replace_embeddings


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.decoder = nn.Linear(8, 11)
        self.decoder.weight = self.table.weight

    def forward(self, ids):
        return self.decoder(self.norm(torch.tanh(self.layer(self.table(ids)))))


def loss(model, ids):
    return nn.functional.cross_entropy(model(ids).float(), ids)


@pytest.mark.parametrize("spared", [False, True])
def test_gradients_reach_the_float32_weights_and_add_up(spared):
    torch.manual_seed(0)
    model = Tied()
    if spared:
        replace_embeddings(model)
    batches = [torch.randint(0, 11, (40,)) for _ in range(3)]
    for ids in batches:
        loss(model, ids).backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with BF16Weights(model)():
        assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        assert model.decoder.weight is model.table.weight
        for ids in batches:
            loss(model, ids).backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert torch.equal(parameter, before[name])
        distance = (parameter.grad - exact[name]).norm() / exact[name].norm()
        assert 0 < distance < 0.05, name  # bfloat16 has eight bits


def test_every_step_reads_the_weights_as_they_are_now():
    model = nn.Linear(2, 1, bias=False)
    lowered = BF16Weights(model)
    for value in (1.0, 3.0):
        with torch.no_grad():
            model.weight.fill_(value)
        with lowered():
            assert model(torch.ones(1, 2, dtype=torch.bfloat16)).item() == 2 * value


def test_frozen_weights_stay_frozen_and_can_thaw():
    model = nn.Linear(2, 2)
    lowered = BF16Weights(model)
    model.weight.requires_grad_(False)
    for thawed in (False, True):
        model.weight.requires_grad_(thawed)
        model.zero_grad()
        with lowered():
            model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        assert (model.weight.grad is not None) == thawed
        assert model.bias.grad is not None


def test_the_weights_come_back_after_an_error():
    model = nn.Linear(2, 2)
    weight = model.weight
    with pytest.raises(RuntimeError, match="stop"), BF16Weights(model)():
        raise RuntimeError("stop")
    assert model.weight is weight


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (7, CHUNK // 3)])
def test_adding_in_chunks_is_adding(shape):
    torch.manual_seed(0)
    total, part = torch.randn(shape), torch.randn(shape).bfloat16()
    expected = total + part.float()
    _add_in_fp32(total, part)
    assert torch.equal(total, expected)
