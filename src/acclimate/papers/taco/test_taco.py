"""TACO against a loop over tokens, and its random draws."""

from __future__ import annotations

import json
import math

import pytest
import torch

from acclimate.papers.taco.objective import (
    SEEDS,
    ContextContrast,
    context_contrastive_loss,
    draw_negatives,
    draw_positives,
)
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each
from tests.papers.terms import HELD, run
from tests.parts.objectives.layouts import outputs, packed, padded, random_states, same_gradients

LENGTHS = torch.tensor([4, 1, 6, 2])


def reference(states, lengths, positive, negative, temperature):
    """The mean over tokens with a positive; gradients go through the anchor only."""
    text = [number for number, length in enumerate(lengths.tolist()) for _ in range(length)]

    def e(a, b):
        return torch.exp((a * b).sum() / (a.norm() * b.norm()) / temperature)

    losses = []
    for t, state in enumerate(states):
        if lengths[text[t]] > 1:
            own = e(state, states[positive[t]].detach())
            others = sum(e(state, states[n].detach()) for n in negative[text[t]])
            losses.append(-torch.log(own / (own + others)))
    return sum(losses) / len(losses)


def test_equals_the_reference():
    torch.manual_seed(0)
    states = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    positive, negative = draw_positives(LENGTHS, 5), draw_negatives(LENGTHS, 7)
    ours = context_contrastive_loss(states, LENGTHS, positive, negative, 0.2)
    same_gradients(ours, reference(states, LENGTHS, positive, negative, 0.2), [states])


@each("layout", [lambda batch: batch, packed])
def test_the_context_is_the_last_state_minus_the_embedding_of_the_same_pass(layout):
    batch = layout(padded())
    term = ContextContrast(temperature=0.3, negatives=9)
    assert term.view == LanguageModelling().view
    last, first = random_states(batch, seed=1), random_states(batch, seed=2)
    representations = term.represent(outputs(batch, {term.view: last}, {term.view: first}))
    ours = term.loss(representations)
    seeds = 1 + batch.seeds % (SEEDS - 1)
    order = seeds.argsort()
    lengths = torch.tensor([len(states) for states in last])[order]
    generator = torch.Generator().manual_seed(int(seeds.sum()))
    positive, negative = draw_positives(lengths, 5, generator), draw_negatives(lengths, 9, generator)
    context = torch.cat([last[number] - first[number] for number in order])
    same_gradients(ours, reference(context, lengths, positive, negative, 0.3), last + first)


def test_positives_are_neighbours_in_the_text():
    """A neighbour one or two tokens away, uniformly; if that is outside the text, any other token of the text."""
    torch.manual_seed(0)
    counts = torch.zeros(13, 13)
    for _ in range(4000):
        counts[torch.arange(13), draw_positives(LENGTHS, 5)] += 1
    counts /= 4000
    text = torch.arange(4).repeat_interleave(LENGTHS)
    same = text[:, None] == text
    assert counts[~same].max() == 0
    assert counts.diagonal()[[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]].max() == 0
    assert counts[4, 4] == 1, "the only token of a text gets itself, and is left out of the mean"
    # In a text of six, the third token has four neighbours. The first has two, so half of its samples are replaced.
    torch.testing.assert_close(counts[7, 5:11], torch.tensor([0.25, 0.25, 0, 0.25, 0.25, 0]), atol=0.03, rtol=0)
    torch.testing.assert_close(counts[5, 5:11], torch.tensor([0, 0.35, 0.35, 0.1, 0.1, 0.1]), atol=0.03, rtol=0)


def test_negatives_are_any_tokens_of_other_texts():
    torch.manual_seed(0)
    drawn = draw_negatives(LENGTHS, 20_000)
    text = torch.arange(4).repeat_interleave(LENGTHS)
    for number in range(4):
        share = torch.bincount(drawn[number], minlength=13) / 20_000
        assert share[text == number].max() == 0
        expected = 1 / (13 - LENGTHS[number].item())
        assert (share[text != number] - expected).abs().max() < 0.015


def test_one_text_and_texts_of_one_token():
    term = ContextContrast()
    single = torch.cat([torch.tensor([[1.0], [0.0]]), torch.randn(2, 4)], dim=1).requires_grad_()
    assert term.loss(single) == 0, "without negatives the positive is certain"
    ones = torch.cat([torch.ones(3, 1), torch.randn(3, 4)], dim=1).requires_grad_()
    loss = term.loss(ones)
    loss.backward()
    assert loss == 0
    assert ones.grad.abs().max() == 0
    both = torch.cat([torch.tensor([[1.0], [0.0], [1.0]]), torch.eye(3)], dim=1)
    loss = ContextContrast(temperature=1.0, negatives=4).loss(both)
    assert math.isclose(loss.item(), math.log(1 + 4), rel_tol=1e-5), "orthogonal contexts: five equal candidates"


@pytest.mark.slow
def test_the_added_term_falls_on_held_out_text(tiny_bert, tmp_path):
    run(tiny_bert, "taco", tmp_path / "out", heldout=HELD, heldout_every=20)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["heldout"]["terms"]["taco"] for line in lines if "heldout" in line]
    assert len(found) >= 3
    assert found[-1] < found[0] - 0.02
