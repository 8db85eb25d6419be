"""Linear layers with lowered weights."""

import copy

import pytest
import torch
from torch import nn

from acclimate.backbone import linear, products
from acclimate.backbone.linear import LoweredLinear, spare_linear
from acclimate.backbone.lowered import LoweredWeights


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """Small layers, too, and on every processor."""
    monkeypatch.setattr(linear, "LEAST", 4)
    monkeypatch.setattr(linear, "has_fast_products", lambda: True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5, bias=False)

    def forward(self, states):
        return self.last(torch.tanh(self.norm(self.first(states)))).float().square().sum()


def models():
    torch.manual_seed(0)
    plain = Model()
    spared = copy.deepcopy(plain)
    spare_linear(spared)
    assert type(spared.first) is type(spared.last) is LoweredLinear
    return plain, spared


def read(model, batches, keeps_room=False, steps=1):
    """Gradients of the weights after the last step, and those of the inputs."""
    lowered, inputs = LoweredWeights(model, keeps_room), []
    for _ in range(steps):
        model.zero_grad()
        with lowered():
            for batch in batches:
                states = batch.bfloat16().requires_grad_()
                model(states).backward()
                inputs.append(states.grad.float())
    return {name: weight.grad for name, weight in model.named_parameters()}, inputs


@pytest.mark.parametrize("shape", [(7, 6), (2, 5, 6), (1, 0, 6)])
@pytest.mark.parametrize("keeps_room", [True, False])
def test_it_is_the_plain_layer(shape, keeps_room):
    plain, spared = models()
    batches = [torch.randn(shape) for _ in range(3)]
    exact, exact_inputs = read(plain, batches)
    found, inputs = read(spared, batches, keeps_room, steps=2)
    assert found.keys() == exact.keys()
    torch.testing.assert_close(inputs[3:], exact_inputs, atol=0.1, rtol=0.02)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert (gradient - exact[name]).norm() <= 0.02 * exact[name].norm(), name


def test_sums_have_more_digits_than_those_of_the_plain_layer():
    """The plain layer rounds the gradient of each micro-batch to bfloat16 before it is added."""
    if not products.has_fast_products():
        pytest.skip("a processor without AMX, or a torch without MKL")
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    spared = copy.deepcopy(layer)
    spare_linear(spared)
    inputs, factors = torch.randn(8, 32, 64).bfloat16(), torch.randn(8, 32, 64).bfloat16()
    exact = torch.einsum("bro,bri->oi", factors.double(), inputs.double())
    errors = []
    for model in (layer, spared):
        with LoweredWeights(model)():
            for states, factor in zip(inputs, factors, strict=True):
                (model(states) * factor).sum().backward()
        errors.append(((model.weight.grad - exact).norm() / exact.norm()).item())
    assert errors[1] < 1e-6 < 1e-4 < errors[0]


def test_frozen_weights_and_inputs_get_nothing():
    _, model = models()
    model.first.weight.requires_grad_(False)
    states = torch.randn(3, 6).bfloat16()
    with LoweredWeights(model)():
        model(states).backward()
    assert model.first.weight.grad is None and states.grad is None
    assert model.first.bias.grad is not None and model.last.weight.grad is not None


def test_weights_that_stand_in_for_none_are_left_to_torch(monkeypatch):
    _, model = models()
    monkeypatch.setattr(linear, "_Linear", None)
    states = torch.randn(3, 6)
    gradient = torch.autograd.grad(model(states), model.first.weight)[0]
    assert gradient.abs().sum() > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(states).backward()


def test_small_layers_and_others_are_left_alone(monkeypatch):
    monkeypatch.setattr(linear, "LEAST", 6)

    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5), Own(6, 6), nn.Embedding(6, 6))
    kinds = [type(module) for module in model]
    spare_linear(model)
    assert [type(module) for module in model] == [LoweredLinear, *kinds[1:]]


def test_a_frozen_layer_does_not_keep_its_input():
    """Importance and adapters read with frozen layers, and nobody asks for the gradient of these."""
    for frozen in (True, False):
        layer = nn.Linear(6, 8)
        spare_linear(layer)
        layer.weight.requires_grad_(not frozen)
        states = torch.randn(3, 6).bfloat16().requires_grad_()
        with LoweredWeights(layer)():
            out = layer(states)
            assert len(out.grad_fn.saved_tensors) == (not frozen)
            out.sum().backward()
            expected = layer.weight.detach().sum(0).expand(3, 6)
        torch.testing.assert_close(states.grad, expected, atol=0.05, rtol=0.02)
