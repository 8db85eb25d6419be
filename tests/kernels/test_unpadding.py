"""Skipping padding, and positions of the last layer that nothing reads."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.engine.steps import Engine
from acclimate.kernels import Unpadded
from acclimate.kernels.unpadding import TOKEN_MULTIPLE
from acclimate.models.encoding import encode, encode_layers, encode_positions, encode_with_embeddings
from acclimate.models.extensions import add_adapters
from acclimate.models.families import FAMILIES
from acclimate.models.gates import gate_units
from acclimate.models.probe import attach
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.kernels.helpers import count_tokens, count_tokens_by_layer, gradients
from tests.tiny import tiny_model

WIDTH = 30
ONE_TEXT_PER_ROW = [[(0, 30)], [(1, 17)], [(2, 9)], [(3, 2)]]
PACKED_ROWS = [[(0, 12), (1, 14)], [(2, 20)], [(3, 3), (4, 1), (5, 4)], [(6, 7)]]
BERT_LIKE = sorted(name for name, family in FAMILIES.items() if family.last_layer_end)


def attached(kind, kernels, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_KERNELS", kernels)
    model = tiny_model(kind)
    return model, attach(model)


def rows_of(layout):
    text = torch.full((len(layout), WIDTH), -1)
    for row, members in enumerate(layout):
        start = 0
        for number, length in members:
            text[row, start : start + length] = number
            start += length
    ids = torch.randint(5, 60, text.shape, generator=torch.Generator().manual_seed(0))
    return ids.masked_fill(text < 0, 0), text


@each("kind", sorted(FAMILIES))
@each("layout", [ONE_TEXT_PER_ROW, PACKED_ROWS])
def test_states_and_gradients_of_gates_are_those_with_padding(kind, layout, monkeypatch):
    ids, text = rows_of(layout)
    real = int((text >= 0).sum())
    found = []
    for kernels in ("auto", "torch"):
        model, layers = attached(kind, kernels, monkeypatch)
        seen = count_tokens(model)
        gates = torch.rand(len(layers), len(ids), layers[0].heads, generator=torch.Generator().manual_seed(1))
        gates.requires_grad_()
        states = encode(model, ids, text, {"H": gates})
        assert states.shape == (*ids.shape, 32) and len(seen) == 2
        if kernels == "auto":
            assert all(real < tokens <= real + TOKEN_MULTIPLE for tokens in seen)
        else:
            assert set(seen) == {ids.numel()}
        states = states[text >= 0]
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        found.append((states, gates.grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_other_outputs_of_the_encoder_are_those_with_padding(monkeypatch):
    ids, text = rows_of(ONE_TEXT_PER_ROW)
    places = torch.tensor([0, 3, 31, 31, 91])
    found = []
    for kernels in ("auto", "torch"):
        model, _ = attached("bert", kernels, monkeypatch)
        seen = count_tokens(model)
        outputs = [*encode_with_embeddings(model, ids, text), *encode_layers(model, ids, text)]
        found.append([[values[text >= 0] for values in outputs], encode_positions(model, ids, text, places)])
        assert set(seen) == ({64, len(places)} if kernels == "auto" else {ids.numel(), len(places)})
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[0][1], found[0][0][0][[0, 3, 31, 31, 57]], atol=1e-5, rtol=1e-4)


def test_adapters_run_without_padding(monkeypatch):
    ids, text = rows_of(ONE_TEXT_PER_ROW)
    found = []
    for kernels in ("auto", "torch"):
        model, layers = attached("bert", kernels, monkeypatch)
        add_adapters(model, layers, 8)
        with torch.no_grad():
            for value in model.parameters():
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(2)), alpha=0.05)
        seen = count_tokens(model)
        found.append(encode(model, ids, text)[text >= 0])
        assert set(seen) == ({64} if kernels == "auto" else {ids.numel()})
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_gates_on_other_units_keep_padded_rows(monkeypatch):
    model, layers = attached("bert", "auto", monkeypatch)
    units = gate_units(model, layers, ("I",))["I"]
    ids, text = rows_of(ONE_TEXT_PER_ROW)
    gates = {"I": torch.rand(len(units), len(ids), units[0].units)}
    seen = count_tokens(model)
    encode(model, ids, text, gates)
    assert set(seen) == {ids.numel()}


def test_a_little_padding_is_kept(monkeypatch):
    model, _ = attached("bert", "auto", monkeypatch)
    seen = count_tokens(model)
    encode(model, *rows_of([[(0, 30)], [(1, 29)], [(2, 30)]]))
    assert set(seen) == {90}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=7, max_size=7), min_size=1, max_size=6))
def test_the_maps_are_inverse(rows):
    text = torch.tensor([[0, *row[:-1], -1] for row in rows])
    maps = Unpadded(text)
    real = text >= 0
    assert len(maps) % TOKEN_MULTIPLE == 0
    assert int(real.sum()) < len(maps) <= int(real.sum()) + TOKEN_MULTIPLE
    numbers = torch.arange(text.numel(), dtype=torch.float64).view(*text.shape, 1).requires_grad_()
    kept = maps.remove_padding(numbers)
    assert kept.shape == (1, len(maps), 1)
    assert torch.equal(maps.values(numbers.detach()[..., 0]), kept[..., 0])
    assert torch.equal(kept[0, : int(real.sum()), 0], numbers[real][:, 0])  # in order
    padded = maps.add_padding(kept)
    assert torch.equal(padded[real], numbers[real])
    assert not real.flatten()[int(padded[~real][0])]  # padding is filled from a padding position
    everywhere = torch.arange(text.numel())[real.flatten()]
    assert torch.equal(kept[0, maps.map_indices(everywhere), 0], numbers.flatten()[everywhere])
    weights = torch.rand(text.shape, dtype=torch.float64) * real
    (padded[..., 0] * weights).sum().backward()
    assert torch.equal(numbers.grad[..., 0], weights)


@each("kind", BERT_LIKE)
def test_masked_language_modelling_finishes_the_last_layer_at_masked_tokens_only(kind):
    model = tiny_model(kind)
    attach(model)
    (batch,) = micro_batches(10_000)
    seen = count_tokens_by_layer(model)
    Engine(model, [LanguageModelling()]).step([batch])
    assert seen == {0: len(Unpadded(batch.text)), 1: len(batch.chosen)}
    assert len(batch.chosen) < batch.tokens / 2


@pytest.mark.needs("tacl")
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_what_another_term_reads_is_computed(kind):
    """MLM shares its view with a contrastive loss over texts, and with one over tokens."""
    importance = torch.linspace(0, 1, 8).view(2, 4)
    objective = importlib.import_module("acclimate.papers.tacl.objective")
    for others in ([GeneralKnowledgeContrast({"H": importance})], [objective.TokenAwareContrast()]):
        model = tiny_model(kind)
        attach(model)
        reference = copy.deepcopy(model)
        batches = micro_batches(10_000)
        alone = Engine(model, [LanguageModelling()]).step(batches, backward=False)
        both = Engine(model, [LanguageModelling(), *others], reference=reference).step(batches, backward=False)
        torch.testing.assert_close(both["mlm"], alone["mlm"], atol=1e-5, rtol=1e-5)


class AllStates(LanguageModelling):
    """Inherits the declaration that it reads masked tokens only, but reads all."""

    def total(self, outputs):
        return outputs.hidden(self.view).sum()


def test_a_term_that_reads_more_than_it_declares_is_an_error():
    model = tiny_model("bert")
    attach(model)
    with pytest.raises(ValueError, match="chosen_only"):
        Engine(model, [AllStates()]).step(micro_batches())


def test_a_step_without_a_masked_token():
    model = tiny_model("bert")
    attach(model)
    (batch,) = micro_batches(10_000)
    batch.labels.fill_(-100)
    assert Engine(model, [LanguageModelling()]).step([batch])["mlm"] == 0
    assert all(torch.isfinite(value).all() for value in gradients(model).values())
