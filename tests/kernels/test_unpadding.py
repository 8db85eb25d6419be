"""Reading without padding gives the states and gradients of reading with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.kernels.unpadding import TOKEN_MULTIPLE, TOKENWISE_FAMILIES, Unpadded, can_unpad
from acclimate.methods import get
from acclimate.models import add_adapters, attach, encode, gate_units
from acclimate.models.encoding import encode_layers, encode_positions, encode_with_embeddings
from acclimate.training.engine import Engine, make_reference
from tests.kernels.test_last_layer import gradients
from tests.tiny import ENCODERS, tiny_model
from tests.training.helpers import micro_batches

WIDTH = 30
LAYOUTS = {
    "a text a row": [[(0, 30)], [(1, 17)], [(2, 9)], [(3, 2)]],
    "texts that share rows": [[(0, 12), (1, 14)], [(2, 20)], [(3, 3), (4, 1), (5, 4)], [(6, 7)]],
}


@pytest.fixture
def with_padding(monkeypatch):
    return lambda: monkeypatch.setattr("acclimate.kernels.unpadding.can_unpad_on", lambda device: False)


def rows_of(layout):
    text = torch.full((len(layout), WIDTH), -1)
    for row, members in enumerate(layout):
        start = 0
        for number, length in members:
            text[row, start : start + length] = number
            start += length
    ids = torch.randint(5, 60, text.shape, generator=torch.Generator().manual_seed(0))
    return ids.masked_fill(text < 0, 0), text


def weigh(states):
    """Return a loss that reads every number differently."""
    return (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum()


def count_tokens(model):
    """Return the tokens that each layer that is as wide as a feed-forward reads, filled as the model runs."""
    seen = []
    for layer in model.base_model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.in_features == 48:
            layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[:-1].numel()))
    return seen


@pytest.mark.parametrize("kind", TOKENWISE_FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_states_and_gradients_are_those_with_padding(kind, layout, with_padding):
    model = tiny_model(kind)
    layers = attach(model)
    ids, text = rows_of(layout)
    gates = torch.rand(len(layers), len(ids), layers[0].heads, generator=torch.Generator().manual_seed(1))
    seen = count_tokens(model)

    def read():
        leaf = gates.clone().requires_grad_()
        model.zero_grad()
        states = encode(model, ids, text, {"H": leaf})
        assert states.shape == (*ids.shape, 32) and len(seen) == 2
        real = states[text >= 0]
        weigh(real).backward()
        return real, gradients(model), leaf.grad

    unpadded = read()
    real = int((text >= 0).sum())
    assert all(real < tokens <= real + TOKEN_MULTIPLE for tokens in seen)
    with_padding()
    seen.clear()
    padded = read()
    assert set(seen) == {ids.numel()}
    assert padded[1].keys() == unpadded[1].keys()
    torch.testing.assert_close(unpadded, padded, atol=1e-5, rtol=1e-4)


def test_what_else_can_be_asked_of_the_encoder_is_the_same(with_padding):
    model = tiny_model("bert")
    attach(model)
    ids, text = rows_of(LAYOUTS["a text a row"])
    places = torch.tensor([0, 3, 31, 31, 91])
    seen = count_tokens(model)

    def read():
        states, embedded = encode_with_embeddings(model, ids, text)
        found = [states, embedded, *encode_layers(model, ids, text)]
        return [values[text >= 0] for values in found], encode_positions(model, ids, text, places)

    unpadded = read()
    torch.testing.assert_close(unpadded[1], unpadded[0][0][[0, 3, 31, 31, 57]], atol=1e-5, rtol=1e-4)
    assert set(seen) == {64, len(places)}
    with_padding()
    torch.testing.assert_close(unpadded, read(), atol=1e-5, rtol=1e-4)


def test_adapters_are_read_without_padding(with_padding):
    model = tiny_model("bert")
    add_adapters(model, attach(model), 8)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(2)), alpha=0.05)
    ids, text = rows_of(LAYOUTS["a text a row"])
    seen = count_tokens(model)
    unpadded = encode(model, ids, text)[text >= 0]
    assert set(seen) == {64}
    with_padding()
    torch.testing.assert_close(unpadded, encode(model, ids, text)[text >= 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["mlm", "mlm-simcse", "mlm-tacl"])
def test_a_step_of_a_method_is_the_same(name, with_padding):
    model = tiny_model("roberta")
    attach(model)
    batches = micro_batches(10_000)
    objectives = get(name).objectives()
    engine = Engine(model, objectives, reference=make_reference(objectives, model))
    seen = count_tokens(model)
    results = []
    for turn in range(2):
        if turn:
            with_padding()
            assert seen[0] < engine.student_views * batches[0].text.numel()
        model.zero_grad()
        results.append((engine.step(batches), gradients(model)))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)


def test_who_reads_without_padding(with_padding):
    assert {kind for kind in ENCODERS if can_unpad(tiny_model(kind))} == set(TOKENWISE_FAMILIES)
    assert not can_unpad(tiny_model("bert", is_decoder=True))
    assert not can_unpad(tiny_model("albert", chunk_size_feed_forward=4))
    own = tiny_model("distilbert")
    layer = own.base_model.transformer.layer[0]
    layer.__class__ = type("TransformerBlock", (type(layer),), {"__module__": "modeling_own"})
    assert not can_unpad(own)
    with_padding()
    assert not can_unpad(tiny_model("bert"))


def test_gates_on_other_units_keep_the_rows(with_padding):
    model = tiny_model("bert")
    layers = attach(model)
    units = gate_units(model, layers, ("I",))["I"]
    ids, text = rows_of(LAYOUTS["a text a row"])
    gates = {"I": torch.rand(len(units), len(ids), units[0].units, generator=torch.Generator().manual_seed(1))}
    seen = count_tokens(model)
    found = encode(model, ids, text, gates)
    assert set(seen) == {ids.numel()}
    with_padding()
    assert torch.equal(found, encode(model, ids, text, gates))


def test_a_little_padding_is_read():
    model = tiny_model("bert")
    attach(model)
    seen = count_tokens(model)
    ids, text = rows_of([[(0, 30)], [(1, 29)], [(2, 30)]])
    encode(model, ids, text)
    assert set(seen) == {90}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=7, max_size=7), min_size=1, max_size=6))
def test_what_was_moved_comes_back(rows):
    text = torch.tensor([[0, *row[:-1], -1] for row in rows])
    moved = Unpadded(text)
    real = text >= 0
    assert len(moved) % TOKEN_MULTIPLE == 0
    assert int(real.sum()) < len(moved) <= int(real.sum()) + TOKEN_MULTIPLE
    numbers = torch.arange(text.numel(), dtype=torch.float64).view(*text.shape, 1).requires_grad_()
    closed = moved.close(numbers)
    assert closed.shape == (1, len(moved), 1)
    assert torch.equal(moved.values(numbers.detach()[..., 0]), closed[..., 0])
    assert torch.equal(closed[0, : int(real.sum()), 0], numbers[real][:, 0])  # in their order
    opened = moved.open(closed)
    assert torch.equal(opened[real], numbers[real])
    assert not real.flatten()[int(opened[~real][0])]  # padding is padding of some place
    everywhere = torch.arange(text.numel())[real.flatten()]
    assert torch.equal(closed[0, moved.places(everywhere), 0], numbers.flatten()[everywhere])
    weights = torch.rand(text.shape, dtype=torch.float64) * real
    (opened[..., 0] * weights).sum().backward()
    assert torch.equal(numbers.grad[..., 0], weights)
