"""The distillation token: its equation, and that the reference model does not see the token."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine, make_reference
from acclimate.models.kinds import MASKED
from acclimate.models.loading import virtual_ids
from acclimate.models.probe import attach
from acclimate.papers.deit.objective import TokenDistillation
from acclimate.parts.masking import RandomMasking
from acclimate.parts.modules import add_virtual_tokens
from tests.cases import each
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer


@pytest.fixture(params=["padded", "packed"])
def parts(request):
    model = tiny_model("bert")
    tokenizer = add_virtual_tokens(model, tiny_tokenizer(), 1)
    (token,) = virtual_ids(tokenizer)
    attach(model)
    torch.manual_seed(0)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)

    def batches(term, tokens=10_000):
        engine = Engine(model, [term], reference=reference)
        collator = Collator.of(tokenizer, RandomMasking(0.3), MASKED, tokens, request.param, engine.rewritings)
        rows = [np.asarray(tokenizer(text)["input_ids"]) for text in TEXTS]
        return engine, collator(rows, np.random.default_rng(0))

    return model, reference, token, batches


@each("distance", ["divergence", "cosine", "squared"])
def test_equals_the_equation_in_value_and_gradient(parts, distance):
    model, reference, token, make = parts
    engine, (batch,) = make(TokenDistillation(token, distance=distance))
    model.zero_grad()
    terms = engine.step([batch])
    fast = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    losses = []
    for number in range(batch.texts):
        mine = batch.text == number
        corrupted, clean = batch.masked[mine][None], batch.original[mine][None]
        assert clean[0, -1] == token
        h = model.base_model(input_ids=corrupted).last_hidden_state[0, -1]
        with torch.no_grad():
            f0 = reference.base_model(input_ids=clean[:, :-1]).last_hidden_state[0].mean(0)
        if distance == "cosine":
            losses.append(1 - (h * f0).sum() / (h.norm() * f0.norm()))
        elif distance == "squared":
            losses.append(sum((h[k] - f0[k]) ** 2 for k in range(len(h))) / len(h))
        else:
            p, q = f0.softmax(0), h.softmax(0)
            losses.append(sum(p[k] * torch.log(p[k] / q[k]) for k in range(len(h))))
    loss = torch.stack(losses).mean()
    loss.backward()
    torch.testing.assert_close(terms["loss"], loss.detach(), rtol=1e-4, atol=1e-6)
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(fast[name], value.grad, rtol=1e-3, atol=1e-6)


def test_micro_batches_add_up(parts):
    _, _, token, make = parts
    engine, whole = make(TokenDistillation(token))
    _, cut = make(TokenDistillation(token), tokens=40)
    assert len(cut) > 1
    torch.testing.assert_close(engine.step(whole)["loss"], engine.step(cut)["loss"])


def test_the_reference_is_frozen(parts):
    model, _, token, _ = parts
    reference = make_reference([TokenDistillation(token)], model)
    assert reference is not None
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.training
