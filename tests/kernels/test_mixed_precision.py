"""bfloat16 copies of float32 master weights."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels import Kernels
from acclimate.kernels import gradients as module
from acclimate.kernels.gradients import CAST_CHUNK, BF16Weights, _add_in_fp32, grad_buffer, master_weight, shadow_copy

WORDS, WIDTH = 50, 8


class Model(nn.Module):
    """Embeddings, two layers, and a projection that is tied to the embeddings or not."""

    def __init__(self, tied):
        super().__init__()
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.decoder = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        if tied:
            self.decoder.weight = self.table.weight

    def loss(self, ids):
        return nn.functional.cross_entropy(self.decoder(self.norm(self.layer(self.table(ids)))).float(), ids)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(module, "MIN_OUTPUTS", WORDS)
    monkeypatch.setattr(module, "CHUNK", 7 * WIDTH)

    def make(tied=False, replaced=True):
        torch.manual_seed(0)
        made = Model(tied)
        if replaced:
            Kernels("cpu", vocabulary_grads=True).replace_layers(made)
        return made

    return make


@pytest.mark.parametrize("replaced", [False, True])
def test_gradients_reach_the_float32_weights_and_add_up(replaced, model):
    model = model(tied=True, replaced=replaced)
    batches = [torch.randint(0, WORDS, (40,)) for _ in range(3)]
    for ids in batches:
        model.loss(ids).backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with BF16Weights(model)():
        assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        assert model.decoder.weight is model.table.weight
        for ids in batches:
            model.loss(ids).backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert torch.equal(parameter, before[name])
        distance = (parameter.grad - exact[name]).norm() / exact[name].norm()
        assert 0 < distance < 0.05, name  # bfloat16 has eight significant bits


def test_each_step_reads_the_current_weights():
    model = nn.Linear(2, 1, bias=False)
    bf16 = BF16Weights(model)
    for value in (1.0, 3.0):
        with torch.no_grad():
            model.weight.fill_(value)
        with bf16():
            assert model(torch.ones(1, 2, dtype=torch.bfloat16)).item() == 2 * value


def test_frozen_weights_stay_frozen_and_can_thaw():
    model = nn.Linear(2, 2)
    bf16 = BF16Weights(model)
    model.weight.requires_grad_(False)
    for thawed in (False, True):
        model.weight.requires_grad_(thawed)
        model.zero_grad()
        with bf16():
            model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        assert (model.weight.grad is not None) == thawed
        assert model.bias.grad is not None


def test_the_weights_are_restored_after_an_error():
    model = nn.Linear(2, 2)
    weight = model.weight
    with pytest.raises(RuntimeError, match="stop"), BF16Weights(model)():
        raise RuntimeError("stop")
    assert model.weight is weight


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (7, CAST_CHUNK // 3)])
def test_adding_in_chunks_is_adding(shape):
    torch.manual_seed(0)
    total, part = torch.randn(shape), torch.randn(shape).bfloat16()
    expected = total + part.float()
    _add_in_fp32(total, part)
    assert torch.equal(total, expected)


def gradients_of_steps(model, reuse, between=lambda model: None):
    """Return copies of the gradients of two steps of two micro-batches each."""
    torch.manual_seed(0)
    step = Kernels("cpu", bf16_weights=True, vocabulary_grads=True).step_context(model, "bf16", reuse)
    found = []
    for _ in range(2):
        with step():
            for _ in range(2):
                model.loss(torch.randint(0, WORDS, (9,))).backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        between(model)
        model.zero_grad()
    return found


def test_a_reused_buffer_holds_nothing_of_the_step_before(model):
    def spoil(model):
        for parameter in model.parameters():
            parameter.grad.fill_(torch.nan)

    fresh = model()
    reused = copy.deepcopy(fresh)
    expected, found = gradients_of_steps(fresh, False), gradients_of_steps(reused, True, between=spoil)
    assert all(not torch.equal(*pair) for pair in zip(*(step.values() for step in expected), strict=True))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.parametrize("reuse", [True, False])
def test_gradients_keep_their_address_if_buffers_are_reused(reuse, model):
    places, held = [], []

    def note(model):
        places.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        held.extend(parameter.grad for parameter in model.parameters())  # keeps these addresses occupied

    gradients_of_steps(model(), reuse, between=note)
    first, second = places
    assert len(first) == 7
    assert [one == other for one, other in zip(first, second, strict=True)] == [reuse] * 7


def test_a_parameter_that_is_no_copy_has_no_buffer():
    parameter = nn.Parameter(torch.zeros(3))
    assert master_weight(parameter) is parameter
    one, other = grad_buffer(parameter), grad_buffer(parameter)
    assert one.data_ptr() != other.data_ptr() and not one.requires_grad


def test_a_buffer_follows_the_shape_of_its_parameter():
    parameter = nn.Parameter(torch.zeros(3, 2))
    copied = shadow_copy(parameter, torch.bfloat16, reuse_grad_buffer=True)
    assert copied.dtype == torch.bfloat16 and not copied.requires_grad and master_weight(copied) is parameter
    buffer = grad_buffer(copied)
    assert buffer is grad_buffer(copied) and (buffer.shape, buffer.dtype) == ((3, 2), torch.float32)
    parameter.data = torch.zeros(4, 2)  # a vocabulary that has grown
    assert grad_buffer(copied).shape == (4, 2)
