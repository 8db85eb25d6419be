"""The terms of the baselines on a real model: micro-batches, packing, dropout, and texts without labels."""

from __future__ import annotations

import pytest
import torch

from acclimate.adaptation.method import REGISTRY, get
from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine, make_reference
from acclimate.models.probe import attach
from acclimate.parts.objectives import Distillation, LanguageModelling, View
from tests.cases import each, installed
from tests.parts.objectives.layouts import cut, packed, padded
from tests.tiny import tiny_model

METHODS = installed(REGISTRY, ["infoword", "kd", "simcse", "taco", "tacl"])
VARIANTS = installed(
    REGISTRY,
    [
        *((name, {}) for name in METHODS),
        ("kd", {"tokens": "masked", "divergence": "reverse"}),
        ("simcse", {"tokens": "masked"}),
        ("infoword", {"span": "masked"}),
        ("infoword", {"pooling": "first", "similarity": "dot", "temperature": 1}),
        ("taco", {"tokens": "original"}),
        ("tacl", {"positions": "unmasked", "similarity": "dot", "temperature": 1}),
        ("lssd", {}),
        ("talr", {}),
        ("talr", {"favors": "unlikely"}),
    ],
)


def engine_for(name, settings=None, training=False, graph_tokens=None):
    """An engine over a tiny model that differs from its frozen reference, so that no term is zero."""
    model = tiny_model("bert")
    attach(model)
    objectives = get(name, **(settings or {})).objectives()
    reference = tiny_model("bert", seed=1)
    attach(reference)
    engine = Engine(model, objectives, reference=reference, graph_tokens=graph_tokens)
    model.train(training)
    return model, engine


def run(model, engine, batches):
    """Terms and gradients of one step."""
    model.zero_grad()
    torch.manual_seed(7)
    terms = engine.step(batches)
    return terms, {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        torch.testing.assert_close(other[0][name], value, atol=1e-5, rtol=1e-4)
    assert one[1].keys() == other[1].keys()
    for name, value in one[1].items():
        torch.testing.assert_close(other[1][name], value, atol=2e-5, rtol=1e-3)


@each(("name", "settings"), VARIANTS)
def test_neither_micro_batches_nor_packing_change_value_or_gradient(name, settings):
    model, engine = engine_for(name, settings)
    batch = padded(rewritings=engine.rewritings)
    whole = run(model, engine, [batch])
    assert all(value > 0.01 for value in whole[0].values())
    for graph_tokens in (0, 100_000):
        engine.graph_tokens = graph_tokens
        assert_same(whole, run(model, engine, cut(batch, 3)))
    assert_same(whole, run(model, engine, [packed(batch)]))


@each("name", METHODS)
def test_a_second_pass_repeats_dropout_and_random_draws(name):
    model, engine = engine_for(name, training=True, graph_tokens=100_000)
    pieces = cut(padded(rewritings=engine.rewritings), 3)
    kept = run(model, engine, pieces)
    after = torch.get_rng_state()
    engine.graph_tokens = 0
    assert_same(kept, run(model, engine, pieces))
    assert torch.equal(torch.get_rng_state(), after)  # otherwise the next step would repeat the same random numbers


@each(("name", "settings"), VARIANTS)
def test_texts_without_labels_give_finite_numbers(name, settings):
    model, engine = engine_for(name, settings)
    rows = [[[2]], [[2, 3]], [[2, 10, 3], [2]], [[2, 10, 11, 12, 3]], [[2, 10, 11, 3]] * 3]
    for texts, rate in [*((texts, 1e-9) for texts in rows), (rows[2], 0.999), (rows[4], 0.999)]:
        terms, gradients = run(model, engine, [padded(texts, rate, engine.rewritings)])
        assert all(value.isfinite() for value in terms.values()), (texts, rate)
        assert all(value.isfinite().all() for value in gradients.values()), (texts, rate)


def test_the_reference_is_a_frozen_copy_without_dropout():
    model = tiny_model("bert")
    attach(model)
    objectives = [LanguageModelling(), Distillation()]
    assert make_reference([LanguageModelling()], model) is None
    model.train()
    engine = Engine(model, objectives, reference=make_reference(objectives, model))
    assert model.training
    batch, view = padded(), View("original", reader="reference")
    before = engine.read(batch, [view]).hidden(view)
    assert not before.requires_grad
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine.step([batch])
    optimizer.step()
    assert all(value.grad is None for value in engine.readers["reference"].parameters())
    torch.testing.assert_close(engine.read(batch, [view]).hidden(view), before, atol=0, rtol=0)
    student = View("original")
    assert (engine.read(batch, [student]).hidden(student) - before).abs().max() > 1e-2


def test_mistakes_are_explained():
    weights = {"dga": "contrast_weight", **dict.fromkeys([*METHODS, "deit"], "weight")}
    cases = [
        *((name, {"temperature": 0}, "temperature must be more than zero") for name in [*METHODS, "dga"]),
        ("dga", {"importance_tokens": -5}, "importance-tokens must be more than zero"),
        *((name, {weight: -1}, "weight must be zero or more") for name, weight in weights.items()),
        ("adapter", {"size": 0}, "size must be more than zero"),
        ("prompt", {"length": 0}, "length must be more than zero"),
        ("taco", {"window": 4}, "window must be an odd number"),
        ("infoword", {"ngram_longest": 0}, "ngram-longest"),
    ]
    for name, settings, words in installed(REGISTRY, cases):
        with pytest.raises(UserError, match=words):
            get(name, **settings)
