"""Importance of heads: exact gradients per text, normalization, and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.models.encoding import encode
from acclimate.models.gates import gate_units
from acclimate.models.probe import attach
from acclimate.parts.updates import mean_importance, normalize_importance, summed_importance
from acclimate.parts.updates.importance import dropout_divergence
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import tiny_model


def importance(model, units, batches, **options):
    """Return the mean importance over all texts, measured as one group."""
    return mean_importance([summed_importance(model, units, batches, **options)])


def one_text(batch, index):
    """Return a micro-batch with one text of a batch, without padding."""
    length = int((batch.text[index] >= 0).sum())
    parts = {name: getattr(batch, name)[index : index + 1, :length] for name in ("original", "masked", "labels")}
    return type(batch)(text=torch.zeros(1, length, dtype=torch.long), texts=1, **parts)


@pytest.fixture
def model():
    return tiny_model("bert")


def test_batched_gate_gradients_equal_a_loop_over_texts(model):
    """Without dropout noise, the batched gradient of the gates equals the gradient of each text alone."""
    layers = attach(model)
    # The two forward passes differ by a deterministic function of the gate instead of by dropout.
    model.eval()
    batch = micro_batches(200)[0]
    gates = torch.full((len(layers), batch.texts, layers[0].heads), 0.9, requires_grad=True)

    def divergence(part, gate):
        first = encode(model, part.original, part.text, {"H": gate})
        second = encode(model, part.original, part.text, {"H": gate * gate})
        log_first, log_second = first.log_softmax(-1), second.log_softmax(-1)
        token = (log_first.exp() * (log_first - log_second)).sum(-1)
        real = part.text >= 0
        return torch.stack([token[row][real[row]].mean() for row in range(len(token))])

    (batched,) = torch.autograd.grad(divergence(batch, gates).sum(), gates)
    for index in range(batch.texts):
        gate = torch.full((len(layers), 1, layers[0].heads), 0.9, requires_grad=True)
        (alone,) = torch.autograd.grad(divergence(one_text(batch, index), gate).sum(), gate)
        torch.testing.assert_close(batched[:, index], alone[:, 0], atol=1e-7, rtol=1e-3)


def test_divergence_is_the_kl_between_two_dropout_masks(model):
    """Eq. 8 computed token by token from the hidden states under the same two dropout masks."""
    attach(model)
    model.train()
    batch = micro_batches(200)[0]
    gates = {"H": torch.ones(2, batch.texts, 4)}
    torch.manual_seed(3)
    fast = dropout_divergence(model, batch, gates)
    torch.manual_seed(3)
    hidden = encode(model, batch.original.repeat(2, 1), batch.text.repeat(2, 1))
    first, second = hidden.chunk(2)
    for index in range(batch.texts):
        values = []
        for place in range(int((batch.text[index] >= 0).sum())):
            p, q = first[index, place].softmax(-1), second[index, place].softmax(-1)
            values.append(sum(p[k] * torch.log(p[k] / q[k]) for k in range(len(p))))
        torch.testing.assert_close(fast[index], torch.stack(values).mean(), rtol=1e-3, atol=1e-6)
    assert (fast > 1e-6).all()


def test_importance_is_the_mean_of_absolute_gradients(model):
    layers = attach(model)
    batch = micro_batches(10_000)[0]
    torch.manual_seed(5)
    fast = importance(model, {"H": layers}, [batch])["H"]
    torch.manual_seed(5)
    model.train()
    gates = torch.ones(2, batch.texts, 4, requires_grad=True)
    divergence = dropout_divergence(model, batch, {"H": gates})
    each = [torch.autograd.grad(value, gates, retain_graph=True)[0][:, row] for row, value in enumerate(divergence)]
    torch.testing.assert_close(fast, torch.stack(each).abs().mean(0), rtol=1e-3, atol=1e-9)


def test_importance_over_several_batches_is_the_mean_over_their_texts(model):
    """Every text has the same weight; the released code sums prefix sums, which weights the first batch most."""
    layers = attach(model)
    batches = micro_batches(40)
    assert len(batches) > 2 and len({batch.texts for batch in batches}) > 1
    torch.manual_seed(5)
    together = importance(model, {"H": layers}, batches)["H"]
    torch.manual_seed(5)
    alone = [importance(model, {"H": layers}, [batch])["H"] * batch.texts for batch in batches]
    mean = torch.stack(alone).sum(0) / sum(batch.texts for batch in batches)
    torch.testing.assert_close(together, mean, rtol=1e-4, atol=1e-9)


def test_measuring_leaves_no_gradient_and_restores_the_model(model):
    layers = attach(model)
    assert not model.training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    importance(model, {"H": layers}, micro_batches())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_without_dropout_is_an_error():
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(UserError, match="dropout of this model is zero"):
        importance(model, {"H": attach(model)}, micro_batches())


def slow_loss(model, batch, row, gates):
    """Return the loss that ``transformers`` computes for one text, with the gates multiplied into the weights."""
    part = one_text(batch, row)
    weights = dict(model.named_parameters())
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}."
        heads = gates["H"][layer].repeat_interleave(8)
        changed = {f"{name}attention.output.dense.weight": heads[None, :]}
        for unit, place in (("I", "intermediate.dense"), ("O", "output.dense")):
            changed |= {
                f"{name}{place}.weight": gates[unit][layer][:, None],
                f"{name}{place}.bias": gates[unit][layer],
            }
        weights |= {key: weights[key] * factor for key, factor in changed.items()}
    inputs = {"input_ids": part.masked, "labels": part.labels}
    return torch.func.functional_call(model, weights, kwargs=inputs).loss


def test_importance_for_a_domain_is_the_gradient_of_the_loss_of_each_masked_text():
    """Heads, intermediate and output units, against a loop over texts through the forward pass of transformers."""
    plain, model = tiny_model("bert"), tiny_model("bert").train()
    units = gate_units(model, attach(model), ["H", "I", "O"])
    batches = micro_batches(40, rate=0.3)
    found = importance(model, units, batches, representation="loss")
    assert model.training, "the mode is restored"
    expected = {part: torch.zeros(len(layers), layers[0].units) for part, layers in units.items()}
    texts = 0
    for batch in batches:
        for row in range(batch.texts):
            texts += 1
            if (batch.labels[row] < 0).all():
                continue
            gates = {part: torch.ones_like(values, requires_grad=True) for part, values in expected.items()}
            slow = torch.autograd.grad(slow_loss(plain, batch, row, gates), list(gates.values()))
            for part, gradient in zip(gates, slow, strict=True):
                expected[part] += gradient.abs()
    for part, values in found.items():
        torch.testing.assert_close(values, expected[part] / texts, rtol=1e-3, atol=1e-8)
    again = importance(model, units, batches, representation="loss")
    assert all(torch.equal(again[part], values) for part, values in found.items()), "there is no dropout"


def test_a_text_without_a_masked_token_has_no_importance_for_a_domain(model):
    """In the released code such a row has the loss NaN, and so has every importance after it."""
    units = {"H": attach(model)}
    (batch,) = micro_batches(10_000, rate=0.3)
    empty = replace(batch, labels=torch.full_like(batch.labels, -100), masked=batch.original)
    count, sums = summed_importance(model, units, [batch, empty], representation="loss")
    alone = summed_importance(model, units, [batch], representation="loss")[1]
    assert count == 2 * batch.texts and (alone["H"] > 0).all()
    torch.testing.assert_close(sums["H"], alone["H"])


def test_one_text_that_dropout_does_not_change_is_no_error(model, monkeypatch):
    """As a short text of a decoder, whose few attention weights may all be kept."""
    calls = []

    def unchanged_at_first(*args):
        calls.append(args)
        return dropout_divergence(*args) * (len(calls) > 1)

    monkeypatch.setattr("acclimate.parts.updates.importance.dropout_divergence", unchanged_at_first)
    assert importance(model, {"H": attach(model)}, micro_batches())["H"].sum() > 0 and len(calls) > 1


@each("kind", ["bert", "albert", "modernbert", "distilbert"])
@each("representation", ["hidden", "logits"])
def test_every_head_gets_a_score(kind, representation):
    model = tiny_model(kind)
    layers = attach(model)
    scores = importance(model, {"H": layers}, micro_batches(), representation=representation)["H"]
    assert scores.shape == (len(layers), layers[0].heads)
    assert (scores > 0).all()


def test_normalization_is_equation_10():
    torch.manual_seed(0)
    raw = torch.rand(3, 6)
    expected = torch.stack([torch.tanh((row - row.mean()) / row.std()).abs() for row in raw])
    torch.testing.assert_close(normalize_importance(raw), expected)


def test_unusual_protects_the_least_important_units_too_and_important_does_not():
    raw = torch.arange(12.0)[None]
    both, upper = normalize_importance(raw)[0], normalize_importance(raw, "important")[0]
    torch.testing.assert_close(both, both.flip(0))
    assert (upper[:6] == 0).all()
    torch.testing.assert_close(upper[6:], both[6:])


def test_a_layer_of_equally_important_heads_gives_zeros_not_nan():
    scores = normalize_importance(torch.stack([torch.full((4,), 1e-7), torch.rand(4)]))
    assert (scores[0] == 0).all()
    assert scores.isfinite().all()
    assert (normalize_importance(torch.rand(3, 1)) == 0).all()  # one head per layer


def test_fast_dropout_has_the_right_rate_scale_and_gradient():
    from acclimate.kernels.attention import dropout

    torch.manual_seed(0)
    values = torch.randn(400, 500, requires_grad=True)
    dropped = dropout(values, 0.1)
    kept = dropped != 0
    assert abs(kept.float().mean().item() - 0.9) < 0.003
    torch.testing.assert_close(dropped[kept], (values / 0.9)[kept], rtol=1e-4, atol=1e-5)
    dropped.sum().backward()
    torch.testing.assert_close(values.grad, kept.float() / 0.9, rtol=1e-4, atol=1e-5)
