"""The regularizer of TAPTER against its equation."""

from __future__ import annotations

import torch

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.tapter.objective import EmbeddingProjection, EmbeddingRegularizer
from acclimate.parts.objectives import LanguageModelling
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import tiny_model


def parts(model):
    torch.manual_seed(3)
    table = model.get_input_embeddings().weight
    projection = EmbeddingProjection(table.shape[1], 6)
    torch.nn.init.normal_(projection.norm.weight)
    torch.nn.init.normal_(projection.norm.bias)
    torch.nn.init.normal_(projection.linear.bias)
    vectors, regularized = torch.randn(len(table), 6), torch.rand(len(table)) < 0.6
    return table, projection, vectors, regularized


def reference(batches, table, projection, vectors, regularized):
    """The equation, one token occurrence at a time, with explicit layer normalization."""
    losses = []
    for batch in batches:
        for ids, text in zip(batch.original.tolist(), batch.text.tolist(), strict=True):
            for index, number in zip(ids, text, strict=True):
                if number < 0 or not regularized[index]:
                    continue
                z = projection.linear.weight @ table[index] + projection.linear.bias
                mean = z.mean()
                normed = (z - mean) / torch.sqrt(((z - mean) ** 2).mean() + projection.norm.eps)
                f = projection.norm.weight * normed + projection.norm.bias
                losses.append(sum((f[k] - vectors[index, k]) ** 2 for k in range(len(f))))
    return torch.stack(losses).mean()


@each("precision", ["fp32", "bf16"])
def test_equals_the_equation_in_value_and_gradient_for_any_micro_batches(precision):
    """E and f stay in float32 even if the model runs with bfloat16 weights."""
    model = tiny_model("bert")
    attach(model)
    table, projection, vectors, regularized = parts(model)
    model.add_module("projection", projection)
    wanted = [table, *projection.parameters()]
    for tokens in (10_000, 60):
        batches = micro_batches(tokens)
        expected = reference(batches, table, projection, vectors, regularized)
        slow = torch.autograd.grad(expected, wanted)
        term = EmbeddingRegularizer(table, projection, vectors, regularized, 2.0)
        engine = Engine(model, [LanguageModelling(0.0), term], precision)
        terms = engine.step(batches)
        torch.testing.assert_close(terms["embedding"], expected.detach(), rtol=1e-4, atol=1e-5)
        for parameter, gradient in zip(wanted, slow, strict=True):
            torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=1e-3, atol=1e-5)
            parameter.grad = None
        model.zero_grad()


def test_it_needs_no_forward_pass():
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, [LanguageModelling(), EmbeddingRegularizer(*parts(model))])
    assert engine.student_views == 1


def test_no_occurrence_gives_zero():
    model = tiny_model("bert")
    attach(model)
    table, projection, vectors, _ = parts(model)
    term = EmbeddingRegularizer(table, projection, vectors, torch.zeros(len(table), dtype=torch.bool))
    terms = Engine(model, [LanguageModelling(), term]).step(micro_batches())
    assert terms["embedding"] == 0
    assert terms["loss"].isfinite()
