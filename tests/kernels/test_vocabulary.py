"""Gradients of tables that wait for the end of a step."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels import optimize, vocabulary
from acclimate.kernels.mixed_precision import BF16Weights
from acclimate.kernels.vocabulary import deferred_vocabulary_grads

WORDS, WIDTH = 50, 4


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(vocabulary, "MIN_OUTPUTS", WORDS)
    monkeypatch.setattr(vocabulary, "CHUNK", 7 * WIDTH)  # the last piece is smaller


class Tied(nn.Module):
    """Words and positions in, words out by the same table."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(9, WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.table.weight

    def loss(self, ids):
        hidden = torch.tanh(self.table(ids) + self.places(torch.arange(ids.shape[1])))
        return nn.functional.cross_entropy(self.decoder(hidden).float().flatten(0, 1), ids.flatten(), reduction="sum")


def models():
    torch.manual_seed(0)
    plain = Tied()
    thrifty = copy.deepcopy(plain)
    optimize(thrifty)
    return plain, thrifty


def batches(count=4):
    return [torch.randint(0, WORDS, (2, 3 + number)) for number in range(count)]


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("large", [True, False, None])  # each settles at once, all wait, some do
def test_the_sum_over_a_step_is_that_of_plain_layers(monkeypatch, large):
    if large is not None:
        monkeypatch.setattr(vocabulary._PendingGradient, "is_large", large)
    plain, thrifty = models()
    for _ in range(2):  # what is there from a step before stays
        step = batches()
        for ids in step:
            plain.loss(ids).backward()
        with deferred_vocabulary_grads():
            for ids in step:
                thrifty.loss(ids).backward()
    torch.testing.assert_close(gradients(thrifty), gradients(plain))


def test_the_table_has_no_gradient_before_the_end(monkeypatch):
    monkeypatch.setattr(vocabulary._PendingGradient, "is_large", False)
    _, model = models()
    with deferred_vocabulary_grads():
        for ids in batches():
            model.loss(ids).backward()
        assert model.table.weight.grad is None
        assert model.decoder.bias.grad is not None
    assert model.table.weight.grad is not None


def test_what_waits_takes_no_more_than_the_gradient(monkeypatch):
    """The bound is that of memory, so it counts bytes; what one micro-batch brings may go beyond."""
    _, model = models()
    held = []
    flush = vocabulary._PendingGradient.flush

    def noting(self):
        held.append(sum(slopes.nbytes + states.nbytes for slopes, states in self.products))
        flush(self)

    monkeypatch.setattr(vocabulary._PendingGradient, "flush", noting)
    step = [torch.randint(1, WORDS, (1, 3)) for _ in range(20)]
    one = 3 * (WORDS + WIDTH) * 4 + 3 * (WIDTH * 4 + 8)  # slopes and states, and a lookup with its ids
    with deferred_vocabulary_grads():
        for ids in step:
            model.loss(ids).backward()
    bound = model.table.weight.nbytes + one
    assert len(held) > 5 and 0 < max(held) <= bound


def test_lowered_weights_are_summed_in_one_product():
    plain, thrifty = models()
    step = batches()
    for ids in step:
        plain.loss(ids).backward()
    with BF16Weights(thrifty)(), deferred_vocabulary_grads():
        for ids in step:
            thrifty.loss(ids).backward()
    grad, exact = thrifty.table.weight.grad, plain.table.weight.grad
    assert grad.dtype == torch.float32
    assert 0 < (grad - exact).norm() / exact.norm() < 0.02


def test_a_step_that_failed_leaves_nothing_for_the_next(monkeypatch):
    monkeypatch.setattr(vocabulary._PendingGradient, "is_large", False)
    plain, thrifty = models()
    first, second = batches(2)
    with pytest.raises(RuntimeError, match="in the middle"), deferred_vocabulary_grads():
        thrifty.loss(first).backward()
        raise RuntimeError("in the middle")
    assert thrifty.table.weight.grad is None
    thrifty.zero_grad()
    with deferred_vocabulary_grads():
        thrifty.loss(second).backward()
    plain.loss(second).backward()
    torch.testing.assert_close(gradients(thrifty), gradients(plain))


def test_frozen_tables_get_none():
    _, model = models()
    model.table.weight.requires_grad_(False)
    with deferred_vocabulary_grads():
        model.loss(batches(1)[0]).backward()
    assert model.table.weight.grad is None
    assert model.places.weight.grad is not None
