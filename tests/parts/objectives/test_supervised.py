"""Losses of drawn examples and the adversary: against plain loops, and in a real training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.parts.masking import DrawExamples
from acclimate.parts.objectives import (
    ClassificationHeads,
    DomainAdversary,
    DrawnClassification,
    NoiseConsistency,
    Outputs,
    SimilarityDistillation,
    View,
    reversal_factor,
    reverse_gradient,
)
from tests.cases import each
from tests.parts.objectives.layouts import cut, packed, padded, random_states, same_gradients, spread
from tests.tiny import tiny_model

WIDTH = 6
EXAMPLES = [[2, 10, 11, 3], [2, 12, 3], [2, *range(20, 70), 3], [2, 13, 14, 15, 3], [2, 16, 3], [2, 17, 18, 3]]
TASKS = [
    [(np.array(row), label) for row, label in zip(EXAMPLES[:4], (0, 1, 1, 0), strict=True)],
    [(np.array(row), label) for row, label in zip(EXAMPLES[4:], (4, 2), strict=True)],
]
DRAW = DrawExamples(TASKS)
EXAMPLE, ORIGINAL = View(DRAW), View("original")


def states_of(batch):
    """Random states of the drawn texts and of the texts, and outputs that have them."""
    drawn = random_states(batch, WIDTH, seed=1, text=batch.rewritten[DRAW].text)
    own = random_states(batch, WIDTH, seed=2)
    hidden = {EXAMPLE: spread(drawn, batch, batch.rewritten[DRAW].text), ORIGINAL: spread(own, batch)}
    return drawn, own, Outputs(hidden, batch, {}, progress=0.3)


def mean(states):
    return sum(states) / len(states)


@each("per_log_classes", [False, True])
def test_the_loss_of_examples_equals_the_reference(per_log_classes):
    torch.manual_seed(0)
    heads = ClassificationHeads(WIDTH, [2, 5])
    batch = padded(rewritings=(DRAW,))
    term = DrawnClassification(DRAW, heads, per_log_classes=per_log_classes)
    drawn, _, out = states_of(batch)
    slow = 0.0
    known = batch.rewritten[DRAW].known.tolist()
    assert {task for task, _ in known} == {0, 1}, "examples of both tasks are in the step"
    for vectors, (task, label) in zip(drawn, known, strict=True):
        logits = heads[task](mean(vectors).float())
        loss = -(logits[label].exp() / logits.exp().sum()).log()
        slow = slow + loss / (math.log(len(logits)) if per_log_classes else 1)
    same_gradients(term.total(out) / term.count(batch), slow / batch.texts, [*drawn, *heads.parameters()])


def test_the_adversary_learns_and_the_encoder_unlearns():
    """The classifier gets the gradient of its loss, the vectors the same times minus the factor."""
    torch.manual_seed(0)
    classifier = nn.Linear(WIDTH, 2)
    batch = padded(rewritings=(DRAW,))
    term = DomainAdversary(DRAW, classifier)
    drawn, own, out = states_of(batch)
    slow = 0.0
    for label, domain in enumerate((drawn, own)):
        for vectors in domain:
            logits = classifier(mean(vectors).float())
            slow = slow - (logits[label].exp() / logits.exp().sum()).log()
    ours, theirs = term.total(out) / term.count(batch), slow / (2 * batch.texts)
    torch.testing.assert_close(ours, theirs)
    leaves = [*classifier.parameters(), *drawn, *own]
    for leaf, fast, plain in zip(
        leaves, torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True
    ):
        factor = 1 if leaf in set(classifier.parameters()) else -(2 / (1 + math.exp(-3)) - 1)
        torch.testing.assert_close(fast, factor * plain, atol=1e-6, rtol=1e-4)


def test_the_factor_rises_from_zero_to_one():
    assert reversal_factor(0) == 0 and abs(reversal_factor(0.1) - math.tanh(0.5)) < 1e-12
    assert 0.9999 < reversal_factor(1) < 1 and reversal_factor(0.5, 2.0) < reversal_factor(0.5)
    vector = torch.randn(3, requires_grad=True)
    assert torch.equal(reverse_gradient(vector, 0.25), vector)
    (reverse_gradient(vector, 0.25) * 2).sum().backward()
    torch.testing.assert_close(vector.grad, torch.full((3,), -0.5))


def share_between(vectors, groups):
    """The share of the variance of vectors that is between two groups of the same size."""
    means = torch.stack([vectors[groups == group].mean(0) for group in (0, 1)])
    return float((means.diff(dim=0) / 2).square().sum() / vectors.var(0).sum())


@pytest.mark.slow
def test_vectors_keep_the_label_and_lose_the_domain():
    """One feature shows the domain, one the label, and a decoder keeps both in the vectors, like a language model."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([[domain, label] for domain in (-1.0, 1.0) for label in (-1.0, 1.0)]).repeat(32, 1)
    inputs = signs + 0.5 * torch.randn(signs.shape, generator=generator)
    domain, label = (signs > 0).long().unbind(1)
    found = []
    for weight in (0.0, 0.3):
        torch.manual_seed(0)
        encoder, head, decoder = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        adversary = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        parts = nn.ModuleList([encoder, head, decoder, adversary])
        optimizer = torch.optim.Adam(parts.parameters(), lr=0.003)
        for step in range(300):
            vectors = encoder(inputs)
            hidden = reverse_gradient(vectors, weight * reversal_factor(step / 300))
            loss = 0.1 * (decoder(vectors) - inputs).square().mean()
            loss = loss + nn.functional.cross_entropy(head(vectors), label)
            loss = loss + nn.functional.cross_entropy(adversary(hidden), domain)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        vectors = encoder(inputs).detach()
        found.append((share_between(vectors, domain), share_between(vectors, label)))
    (seen, _), (unseen, learned) = found
    assert seen > 0.15 and unseen < 0.06 and learned > 0.5


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), copies=st.integers(1, 5))
def test_drawn_texts_depend_on_their_seeds_alone(seed, copies):
    ids = np.full((copies, 3), 5)
    text = np.arange(copies)[:, None].repeat(3, 1)
    rows, numbers, known = DRAW(ids, text, text >= 0, None, [seed] * copies)
    assert rows.dtype == ids.dtype and (rows == rows[0]).all() and (known == known[0]).all()
    assert [set(row) - {-1} for row in numbers.tolist()] == [{number} for number in range(copies)]
    drawn = rows[0][numbers[0] >= 0].tolist()
    task, label = known[0]
    assert (drawn, label) in [(row.tolist(), number) for row, number in TASKS[task]]


def test_neither_micro_batches_nor_packing_change_value_or_gradient():
    torch.manual_seed(0)
    model = tiny_model("bert")
    attach(model)
    heads, classifier = ClassificationHeads(32, [2, 5]), nn.Linear(32, 2)
    engine = Engine(model, [DrawnClassification(DRAW, heads, per_log_classes=True), DomainAdversary(DRAW, classifier)])
    engine.progress = 0.2
    batch = padded(rewritings=engine.rewritings)
    found = []
    for batches in ([batch], cut(batch, 3), [packed(batch)]):
        model.zero_grad()
        found.append((engine.step(batches), [one.grad.clone() for one in model.parameters() if one.grad is not None]))
    for terms, gradients in found[1:]:
        for name, value in found[0][0].items():
            torch.testing.assert_close(terms[name], value, atol=1e-5, rtol=1e-4)
        for ours, whole in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(ours, whole, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("tokens", [60, 500])
def test_long_examples_beside_short_texts_stay_within_the_limit(tokens):
    """An example has up to 52 tokens, a text as few as 4; a micro-batch has room for what is drawn."""
    from acclimate.engine.batches import Collator
    from acclimate.models.kinds import MASKED
    from acclimate.parts.masking import RandomMasking
    from tests.tiny import tiny_tokenizer

    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, tokens, rewritings=(DRAW,))
    for batch in collator([np.array([2, 10, 11, 3])] * 12, np.random.default_rng(0)):
        assert batch.texts == 1 or batch.rewritten[DRAW].ids.numel() <= tokens


def test_similarities_equal_the_reference():
    """Inner products of all drawn texts of the step, with rows of norm one; the teacher is wider."""
    batch = padded(rewritings=(DRAW,))
    term = SimilarityDistillation(DRAW)
    student = random_states(batch, WIDTH, seed=1, text=batch.rewritten[DRAW].text)
    teacher = random_states(batch, 9, seed=2, grad=False, text=batch.rewritten[DRAW].text)
    states = dict(zip(term.views, (student, teacher), strict=True))
    hidden = {view: spread(each, batch, batch.rewritten[DRAW].text) for view, each in states.items()}
    slow = 0.0
    for i in range(batch.texts):
        rows = [torch.stack([mean(one[i]) @ mean(one[j]) for j in range(batch.texts)]) for one in (student, teacher)]
        s, t = (row / row.square().sum().sqrt() for row in rows)
        slow = slow + ((s - t) ** 2).sum()
    ours = term.loss(term.represent(Outputs(hidden, batch, {})))
    same_gradients(ours, slow / batch.texts**2, student)


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
