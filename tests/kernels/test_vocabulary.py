"""In-place and deferred gradients of embeddings and of the vocabulary projection."""

import copy

import pytest
import torch
from torch import nn

from acclimate.kernels import Kernels
from acclimate.kernels import gradients as module
from acclimate.kernels.gradients import BF16Weights, RowEmbedding, RowProjection, deferred_vocabulary_grads
from tests.cases import each

WORDS, WIDTH = 50, 4


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(module, "MIN_OUTPUTS", WORDS)
    monkeypatch.setattr(module, "CHUNK", 7 * WIDTH)  # the last chunk is smaller


class Tied(nn.Module):
    """Word and position embeddings, a layer, and a projection tied to the word embeddings."""

    def __init__(self, bias=True):
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(9, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS, bias=bias)
        self.decoder.weight = self.table.weight

    def forward(self, ids):
        hidden = torch.tanh(self.layer(self.table(ids) + self.places(torch.arange(ids.shape[-1]))))
        return self.decoder(hidden)

    def loss(self, ids):
        return nn.functional.cross_entropy(self(ids).float().flatten(0, -2), ids.flatten(), reduction="sum")


def replaced(model):
    model = copy.deepcopy(model)
    Kernels("cpu", vocabulary_grads=True).replace_layers(model)
    return model


def models(**options):
    torch.manual_seed(0)
    plain = Tied(**options)
    return plain, replaced(plain)


def batches(count=4):
    return [torch.randint(0, WORDS, (2, 3 + number)) for number in range(count)]


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@each("bias", [True, False])
@each("shape", [(5,), (3, 2), (1, 1), (0,)])  # a short text may have no masked token
def test_values_and_gradients_are_those_of_plain_layers(bias, shape):
    plain, model = models(bias=bias)
    assert [type(model.table), type(model.decoder), type(model.layer)] == [RowEmbedding, RowProjection, nn.Linear]
    for _ in range(3):  # gradients add up over batches
        ids = torch.randint(0, WORDS, shape)
        losses = [each_model.loss(ids) for each_model in (plain, model)]
        torch.testing.assert_close(losses[1], losses[0])
        for loss in losses:
            loss.backward()
    assert model.decoder.weight is model.table.weight
    torch.testing.assert_close(gradients(model), gradients(plain))


@pytest.mark.parametrize("large", [True, False, None])  # flush at once, at the end, or when large enough
def test_the_sum_over_a_step_is_that_of_plain_layers(monkeypatch, large):
    if large is not None:
        monkeypatch.setattr(module._PendingGradient, "is_large", large)
    plain, model = models()
    for _ in range(2):  # gradients of an earlier step are kept
        step = batches()
        for ids in step:
            plain.loss(ids).backward()
        with deferred_vocabulary_grads():
            for ids in step:
                model.loss(ids).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_the_weight_has_no_gradient_before_the_end_of_a_step(monkeypatch):
    monkeypatch.setattr(module._PendingGradient, "is_large", False)
    _, model = models()
    with deferred_vocabulary_grads():
        for ids in batches():
            model.loss(ids).backward()
        assert model.table.weight.grad is None
        assert model.decoder.bias.grad is not None
    assert model.table.weight.grad is not None


def test_pending_parts_take_no_more_memory_than_the_gradient(monkeypatch):
    """Except for the parts of the last micro-batch."""
    _, model = models()
    held = []
    flush = module._PendingGradient.flush

    def noting(self):
        held.append(sum(part.nbytes + states.nbytes for part, states in self.products))
        flush(self)

    monkeypatch.setattr(module._PendingGradient, "flush", noting)
    step = [torch.randint(1, WORDS, (1, 3)) for _ in range(20)]
    one = 3 * (WORDS + WIDTH) * 4 + 3 * (WIDTH * 4 + 8)  # logit gradients and states, and a lookup with its ids
    with deferred_vocabulary_grads():
        for ids in step:
            model.loss(ids).backward()
    assert len(held) > 5 and 0 < max(held) <= model.table.weight.nbytes + one


@each("deferred", [True, False])
def test_with_bf16_weights_gradients_are_summed_in_float32(deferred):
    plain, model = models()
    step = [torch.randint(0, WORDS, (40, 9)) for _ in range(3)]
    for ids in step:
        plain.loss(ids).backward()
    with BF16Weights(model)():
        if deferred:
            with deferred_vocabulary_grads():
                for ids in step:
                    model.loss(ids).backward()
        else:
            for ids in step:
                model.loss(ids).backward()
    for name, exact in gradients(plain).items():
        found = gradients(model)[name]
        assert found.dtype == torch.float32
        assert 0 < (found - exact).norm() / exact.norm() < 0.05, name


def test_a_failed_step_leaves_nothing_for_the_next(monkeypatch):
    monkeypatch.setattr(module._PendingGradient, "is_large", False)
    plain, model = models()
    first, second = batches(2)
    with pytest.raises(RuntimeError, match="in the middle"), deferred_vocabulary_grads():
        model.loss(first).backward()
        raise RuntimeError("in the middle")
    assert model.table.weight.grad is None
    model.zero_grad()
    with deferred_vocabulary_grads():
        model.loss(second).backward()
    plain.loss(second).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_frozen_weights_and_inference_get_no_gradient():
    _, model = models()
    model.table.weight.requires_grad_(False)
    with deferred_vocabulary_grads():
        model.loss(batches(1)[0]).backward()
    assert model.table.weight.grad is None
    assert model.places.weight.grad is not None and model.layer.weight.grad is not None
    with torch.no_grad():
        assert not model(torch.tensor([1])).requires_grad


def test_a_layer_whose_input_needs_no_gradient():
    model = replaced(nn.Sequential(nn.Linear(4, WORDS)))
    model(torch.ones(2, 4)).sum().backward()
    assert torch.equal(model[0].weight.grad, torch.full((WORDS, 4), 2.0))
    assert torch.equal(model[0].bias.grad, torch.full((WORDS,), 2.0))


def test_other_layers_are_left_alone():
    class OwnLinear(nn.Linear):
        pass

    class OwnEmbedding(nn.Embedding):
        pass

    others = [OwnLinear(3, WORDS), nn.Linear(3, WORDS - 1), OwnEmbedding(3, 2), nn.Embedding(3, 2, max_norm=1.0)]
    others.append(nn.Embedding(3, 2, sparse=True))
    assert [type(module) for module in replaced(nn.Sequential(*others))] == [type(module) for module in others]


def test_a_model_that_has_moved_or_runs_under_autocast_uses_autograd():
    model = models()[1]
    in_place = lambda output: "Projection" in type(output.grad_fn).__name__  # noqa: E731
    assert in_place(model.decoder(torch.zeros(2, 4)))
    with torch.autocast("cpu", torch.bfloat16):
        assert not in_place(model(torch.tensor([1])))
    moved = model.to("meta")
    assert not in_place(moved.decoder(torch.zeros(2, 4, device="meta")))
    looked_up = moved.table(torch.zeros(2, dtype=torch.long, device="meta"))
    assert "EmbeddingFunction" not in type(looked_up.grad_fn).__name__
