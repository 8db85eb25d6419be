"""Memory of gradients that stays from step to step."""

import copy

import pytest
import torch
from torch import nn

from acclimate.backbone import projection, tables
from acclimate.backbone.lowered import LoweredWeights
from acclimate.backbone.stand_in import master, room_for_gradient, stand_in
from acclimate.backbone.tables import collected_tables
from acclimate.backbone.thrift import make_thrifty

WORDS, WIDTH = 50, 4


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(projection, "MANY", WORDS)
    monkeypatch.setattr(tables, "CHUNK", 7 * WIDTH)


class Model(nn.Module):
    """A table that is looked up only, one that is multiplied with, and a layer."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def loss(self, ids):
        return nn.functional.cross_entropy(self.decoder(self.layer(self.table(ids))).float(), ids)


def gradients_of_steps(model, keeps_room, between=lambda model: None):
    """Two micro-batches a step, two steps; copies of the gradients of each."""
    torch.manual_seed(0)
    lowered, found = LoweredWeights(model, keeps_room), []
    for _ in range(2):
        with lowered(), collected_tables():
            for _ in range(2):
                model.loss(torch.randint(0, WORDS, (9,))).backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        between(model)
        model.zero_grad()
    return found


def models():
    torch.manual_seed(0)
    model = Model()
    make_thrifty(model)
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


@pytest.mark.parametrize("keeps_room", [True, False])
def test_gradients_are_where_they_were_if_the_room_is_kept(keeps_room):
    places, held = [], []

    def note(model):
        places.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        held.extend(parameter.grad for parameter in model.parameters())  # so that fresh memory is another

    gradients_of_steps(models()[0], keeps_room, between=note)
    first, second = places
    assert len(first) == 5
    assert [one == other for one, other in zip(first, second, strict=True)] == [keeps_room] * 5


def test_a_parameter_by_itself_has_no_room_that_stays():
    parameter = nn.Parameter(torch.zeros(3))
    assert master(parameter) is parameter
    one, other = room_for_gradient(parameter), room_for_gradient(parameter)
    assert one.data_ptr() != other.data_ptr() and not one.requires_grad


def test_a_room_follows_the_shape_of_its_parameter():
    parameter = nn.Parameter(torch.zeros(3, 2))
    copied = stand_in(parameter, torch.bfloat16, keeps_room=True)
    assert copied.dtype == torch.bfloat16 and not copied.requires_grad and master(copied) is parameter
    room = room_for_gradient(copied)
    assert room is room_for_gradient(copied) and (room.shape, room.dtype) == ((3, 2), torch.float32)
    parameter.data = torch.zeros(4, 2)  # a vocabulary that has grown
    assert room_for_gradient(copied).shape == (4, 2)
