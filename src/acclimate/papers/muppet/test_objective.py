"""Consistency under noise, against the model's own forward pass."""

from __future__ import annotations

import torch
from torch import nn

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.muppet.objective import NoiseConsistency
from acclimate.parts.objectives import ClassificationHeads
from tests.parts.objectives.drawn import DRAW
from tests.parts.objectives.layouts import padded
from tests.tiny import tiny_model


def test_noise_consistency_equals_the_reference(monkeypatch):
    """With the model's own forward pass of each text by itself, to whose embeddings the noise is added.

    The noise is the same at all tokens, so that it does not matter in which layout they are read.
    """
    torch.manual_seed(0)
    model, heads = tiny_model("bert"), ClassificationHeads(32, [2, 5])
    attach(model)
    for head in heads:
        nn.init.normal_(head.weight)
    term = NoiseConsistency(DRAW, heads, model, deviation=0.5)
    batch = padded(rewritings=(DRAW,))
    engine = Engine(model, [term])
    noise = torch.randn(32)
    monkeypatch.setattr(torch, "randn_like", noise.expand_as)
    ours = engine.step([batch])["r3f"]
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    ids, text, known, _ = batch.rewritten[DRAW]
    slow = 0.0
    for number in range(batch.texts):
        clean = model.get_input_embeddings()(ids[number][text[number] == number][None])
        states = [
            model.base_model(inputs_embeds=one).last_hidden_state[0].mean(0) for one in (clean, clean + 0.5 * noise)
        ]
        p, q = (heads[int(known[number, 0])](one).softmax(0) for one in states)
        slow = slow + (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    torch.testing.assert_close(ours, slow.detach() / batch.texts, atol=1e-5, rtol=1e-4)
    model.zero_grad()
    (slow / batch.texts).backward()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, dict(model.named_parameters())[name].grad, atol=2e-5, rtol=1e-3)
    assert not model.get_input_embeddings()._forward_hooks
