"""Soft masks with a real optimizer: which weights they scale, and by how much."""

from __future__ import annotations

import pytest
import torch

from acclimate.errors import UserError
from acclimate.models import attach
from acclimate.objectives import LanguageModelling
from acclimate.training.engine import Engine
from acclimate.updates import SoftMask
from tests.cases import each
from tests.tiny import tiny_model
from tests.training.helpers import micro_batches

WIDTH = 8


def train(kind, importance, on, steps=4, optimizer_class=torch.optim.AdamW, **options):
    """Train with and without the mask; return the change of every parameter in both runs, and the layers."""
    changes, layers = [], []
    for values in (importance, None):
        torch.manual_seed(1)
        model = tiny_model(kind)
        layers = attach(model)
        start = {name: value.detach().clone() for name, value in model.named_parameters()}
        mask = SoftMask({"H": layers}, {"H": values}, on) if values is not None else None
        optimizer = optimizer_class(model.parameters(), **{"lr": 1e-3, **options})
        engine = Engine(model.train(), [LanguageModelling()])
        for step in range(steps):
            engine.step(micro_batches(seed=step))
            if mask:
                mask.before_step()
            optimizer.step()
            if mask:
                mask.after_step()
            optimizer.zero_grad()
        changes.append({name: (value - start[name]).detach() for name, value in model.named_parameters()})
    return changes[0], changes[1], layers


def test_a_head_of_importance_one_does_not_change():
    importance = torch.zeros(2, 4)
    importance[0, 1] = 1
    masked, _, _ = train("bert", importance, "update", weight_decay=0.1)
    rows = slice(WIDTH, 2 * WIDTH)
    others = [row for row in range(32) if not WIDTH <= row < 2 * WIDTH]
    for part in ("query", "key", "value"):
        name = f"bert.encoder.layer.0.attention.self.{part}"
        assert (masked[f"{name}.weight"][rows] == 0).all()
        assert (masked[f"{name}.weight"][others] != 0).any(1).all()
        if part != "key":  # the bias of the keys cancels in the softmax, so it has no gradient
            assert (masked[f"{name}.bias"][others] != 0).any()
        assert (masked[f"{name}.bias"][rows] == 0).all()
    output = masked["bert.encoder.layer.0.attention.output.dense.weight"]
    assert (output[:, rows] == 0).all()
    assert (output[:, others] != 0).any(0).all()
    assert (masked["bert.encoder.layer.0.attention.output.dense.bias"] != 0).any()
    assert (masked["bert.encoder.layer.1.attention.self.query.weight"] != 0).all(1).any()


def test_fused_projections_are_masked_per_head():
    importance = torch.zeros(2, 4)
    importance[1, 0] = 1
    masked, _, layers = train("modernbert", importance, "update")
    change = masked["model.layers.1.attn.Wqkv.weight"]
    for part in range(3):
        block = change[32 * part : 32 * (part + 1)]
        assert (block[:WIDTH] == 0).all()
        assert (block[WIDTH:] != 0).any(1).all()
    assert (masked["model.layers.1.attn.Wo.weight"][:, :WIDTH] == 0).all()
    assert layers[1].inputs[0].linear is layers[1].inputs[2].linear


def one_step(on, factor):
    """Return the change of layer 0's query weights in the first step, relative to training without a mask."""
    masked, free, _ = train("bert", torch.full((2, 4), 1 - factor), on, steps=1, weight_decay=0.0, eps=1e-12)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    return (masked[name].norm() / free[name].norm()).item()


@each("factor", [0.5, 0.1])
def test_masking_the_update_scales_the_step_and_adam_cancels_a_gradient_mask(factor):
    assert abs(one_step("update", factor) - factor) < 0.01
    assert one_step("gradient", factor) > 0.95


def test_a_gradient_mask_works_under_plain_sgd():
    masked, free, _ = train("bert", torch.full((2, 4), 0.75), "gradient", steps=1, optimizer_class=torch.optim.SGD)
    name = "bert.encoder.layer.0.attention.self.value.weight"
    torch.testing.assert_close(masked[name], free[name] * 0.25, rtol=1e-2, atol=1e-7)


def test_invalid_importance_is_an_error():
    model = tiny_model("bert")
    layers = attach(model)
    for bad in (torch.full((2, 4), float("nan")), torch.full((2, 4), 1.5)):
        with pytest.raises(UserError, match="between 0 and 1"):
            SoftMask({"H": layers}, {"H": bad})
    with pytest.raises(UserError, match="update"):
        SoftMask({"H": layers}, {"H": torch.zeros(2, 4)}, on="gradients")
