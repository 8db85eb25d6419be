"""Memory of gradients that stays from step to step."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels import optimize, vocabulary
from acclimate.kernels.mixed_precision import BF16Weights, grad_buffer, master_weight, shadow_copy
from acclimate.kernels.vocabulary import deferred_vocabulary_grads

WORDS, WIDTH = 50, 4


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(vocabulary, "MIN_OUTPUTS", WORDS)
    monkeypatch.setattr(vocabulary, "CHUNK", 7 * WIDTH)


class Model(nn.Module):
    """A table that is looked up only, one that is multiplied with, and a layer."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def loss(self, ids):
        return nn.functional.cross_entropy(self.decoder(self.layer(self.table(ids))).float(), ids)


def gradients_of_steps(model, reuse_grad_buffer, between=lambda model: None):
    """Two micro-batches a step, two steps; copies of the gradients of each."""
    torch.manual_seed(0)
    lowered, found = BF16Weights(model, reuse_grad_buffer), []
    for _ in range(2):
        with lowered(), deferred_vocabulary_grads():
            for _ in range(2):
                model.loss(torch.randint(0, WORDS, (9,))).backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        between(model)
        model.zero_grad()
    return found


def models():
    torch.manual_seed(0)
    model = Model()
    optimize(model)
    return model, copy.deepcopy(model)


def test_a_room_has_nothing_of_the_step_before():
    def spoil(model):
        for parameter in model.parameters():
            parameter.grad.fill_(torch.nan)

    fresh, kept = models()
    expected, found = gradients_of_steps(fresh, False), gradients_of_steps(kept, True, between=spoil)
    assert all(not torch.equal(*pair) for pair in zip(*(each.values() for each in expected), strict=True))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.parametrize("reuse_grad_buffer", [True, False])
def test_gradients_are_where_they_were_if_the_room_is_kept(reuse_grad_buffer):
    places, held = [], []

    def note(model):
        places.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        held.extend(parameter.grad for parameter in model.parameters())  # so that fresh memory is another

    gradients_of_steps(models()[0], reuse_grad_buffer, between=note)
    first, second = places
    assert len(first) == 5
    assert [one == other for one, other in zip(first, second, strict=True)] == [reuse_grad_buffer] * 5


def test_a_parameter_by_itself_has_no_room_that_stays():
    parameter = nn.Parameter(torch.zeros(3))
    assert master_weight(parameter) is parameter
    one, other = grad_buffer(parameter), grad_buffer(parameter)
    assert one.data_ptr() != other.data_ptr() and not one.requires_grad


def test_a_room_follows_the_shape_of_its_parameter():
    parameter = nn.Parameter(torch.zeros(3, 2))
    copied = shadow_copy(parameter, torch.bfloat16, reuse_grad_buffer=True)
    assert copied.dtype == torch.bfloat16 and not copied.requires_grad and master_weight(copied) is parameter
    room = grad_buffer(copied)
    assert room is grad_buffer(copied) and (room.shape, room.dtype) == ((3, 2), torch.float32)
    parameter.data = torch.zeros(4, 2)  # a vocabulary that has grown
    assert grad_buffer(copied).shape == (4, 2)
