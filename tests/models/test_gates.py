"""Gates and soft masks on units other than heads, for every family of encoders and decoders."""

from __future__ import annotations

import copy

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine
from acclimate.models.encoding import encode
from acclimate.models.gates import gate_units
from acclimate.models.probe import attach
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import SoftMask, mean_importance, summed_importance
from tests.adaptation.helpers import micro_batches
from tests.models.test_encoders import IDS, TEXT
from tests.tiny import DECODERS, ENCODERS, tiny_model

REAL = TEXT >= 0
OTHERS = ("I", "O", "E")


ALIKE = ("camembert", "granite", "mistral", "olmo", "roberta", "smollm3", "xlm-roberta")
"""Families whose layers are those of BERT or Llama."""


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.slow if kind in ALIKE else ())
        for kind in [*sorted(ENCODERS), *sorted(DECODERS)]
    ]
)
def model(request):
    return tiny_model(request.param)


def ones(units, rows=2):
    return {part: torch.ones(len(layers), rows, layers[0].units) for part, layers in units.items()}


def test_a_gate_of_one_changes_nothing_and_a_gate_of_zero_does(model):
    units = gate_units(model, attach(model), ("H", *OTHERS))
    plain = encode(model, IDS, TEXT)
    torch.testing.assert_close(encode(model, IDS, TEXT, ones(units)), plain)
    for part in OTHERS:
        for layer in range(len(units[part])):
            gates = ones(units)
            gates[part][layer, 0, 3] = 0
            gated = encode(model, IDS, TEXT, gates)
            assert (gated[0] - plain[0]).abs().max() > 1e-6
            torch.testing.assert_close(gated[1][:4], plain[1][:4])
    torch.testing.assert_close(encode(model, IDS, TEXT), plain)


def test_gradients_reach_every_gate(model):
    units = gate_units(model, attach(model), OTHERS)
    gates = {part: values.requires_grad_() for part, values in ones(units).items()}
    encode(model, IDS, TEXT, gates)[REAL].pow(3).sum().backward()
    for values in gates.values():
        assert (values.grad != 0).float().mean() > 0.95


@pytest.mark.parametrize("part", OTHERS)
def test_a_gate_silences_the_weights_of_its_unit(model, part):
    """Zeroing the weights of some units is the same as gates of zero on them."""
    units = gate_units(model, attach(model), [part])
    gates = ones(units)
    chosen = torch.zeros(units[part][0].units)
    chosen[[1, 5]] = 1
    gates[part][:, :, chosen.bool()] = 0
    expected = encode(model, IDS, TEXT, gates)
    with torch.no_grad():
        for layer in units[part]:
            owned = layer.spread_over_parameters(chosen)
            # The normalization after the embedding belongs to its features, but the gate comes before it.
            for weight, shares in [entry for entry in owned if part != "E" or entry[0].dim() == 2]:
                weight *= 1 - shares
    torch.testing.assert_close(encode(model, IDS, TEXT)[REAL], expected[REAL], atol=1e-5, rtol=1e-4)


def test_fully_important_units_do_not_change_and_others_do(model):
    units = gate_units(model, attach(model), OTHERS)
    importance = {part: torch.zeros(len(layers), layers[0].units) for part, layers in units.items()}
    for values in importance.values():
        values[:, ::2] = 1
    start = {id(value): value.detach().clone() for value in model.parameters()}
    rule = SoftMask(units, importance)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    engine = Engine(model.train(), [LanguageModelling()])
    for step in range(3):
        engine.step(micro_batches(seed=step))
        rule.step(optimizer, optimizer.step)
        optimizer.zero_grad()
    for part, layers in units.items():
        for layer in layers:
            for weight, shares in layer.spread_over_parameters(importance[part][0]):
                change = (weight - start[id(weight)]).detach()
                kept = shares.expand_as(weight) == 1
                assert (change[kept] == 0).all()
                assert (change[~kept] != 0).float().mean() > 0.5


@pytest.mark.parametrize("kind", ["bert", "modernbert", "electra", "llama"])
def test_importance_of_all_parts_is_the_mean_of_absolute_gradients(kind):
    from acclimate.parts.updates.importance import dropout_divergence

    model = tiny_model(kind, **({"attention_dropout": 0.1} if kind in DECODERS else {}))
    units = gate_units(model, attach(model), ("H", *OTHERS))
    batch = micro_batches(10_000)[0]
    torch.manual_seed(5)
    fast = mean_importance([summed_importance(model, units, [batch])])
    torch.manual_seed(5)
    model.train()
    gates = {part: values.requires_grad_() for part, values in ones(units, batch.texts).items()}
    divergence = dropout_divergence(model, batch, gates)
    for part, values in gates.items():
        each = [torch.autograd.grad(one, values, retain_graph=True)[0][:, row] for row, one in enumerate(divergence)]
        torch.testing.assert_close(fast[part], torch.stack(each).abs().mean(0), rtol=1e-3, atol=1e-8)
        assert (fast[part] > 0).float().mean() > 0.95


def test_a_copy_of_a_model_has_separate_gates():
    model = tiny_model("bert")
    units = gate_units(model, attach(model), OTHERS)
    other = copy.deepcopy(model)
    plain = encode(other, IDS, TEXT)
    gates = {part: 0 * values for part, values in ones(units).items()}
    assert (encode(other, IDS, TEXT, gates) - plain).abs().max() > 1e-3
    torch.testing.assert_close(encode(model, IDS, TEXT), plain)


def test_an_unknown_part_is_refused():
    model = tiny_model("bert")
    with pytest.raises(UserError, match="Unknown part 'X'"):
        gate_units(model, attach(model), ["X"])
